"""Launches of Triton kernels in what the coder writes: looked up by Triton once, then by the file itself."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers.builtin.proving import propose
from tests.helpers.installed import require

require("triton")

STREAM = 7
FORWARD = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x.relu(), -1)

def get_inputs():
    return [torch.randn(64, 128)]

def get_init_inputs():
    return []
"""


class Kernel:
    """Stand-in for a Triton kernel that records its launches."""

    def __init__(self, compiles: bool = True) -> None:
        self.compiles = compiles
        self.said: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> "Compiled | None":
            self.said.append(("looked up", grid, options))
            return Compiled(self) if self.compiles else None

        return launch


class Compiled:
    function, packed_metadata = 1, 2

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def run(self, x: int, y: int, z: int, stream: int, *rest: Any) -> None:
        assert stream == STREAM and rest[:5] == (1, 2, None, None, None)
        self.kernel.said.append(("kept", (x, y, z), {}))


@pytest.fixture(scope="module")
def text() -> str:
    return propose(FORWARD, "triton").source


@pytest.fixture
def launcher(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    names: dict[str, Any] = {"torch": torch}
    found = re.search(r"^class Launcher:.*?(?=^\S)", text, re.M | re.S)
    assert found is not None
    exec(found[0], names)
    return names["Launcher"]


def test_a_kernel_that_is_launched_has_a_launcher(text: str) -> None:
    assert len(re.findall(r"^@Launcher\n@triton\.jit\n", text, re.M)) == 1


def test_the_second_launch_is_the_compiled_kernel_s(launcher: Any) -> None:
    kernel = Kernel()
    kept, x = launcher(kernel), torch.zeros(64)
    for _ in range(3):
        kept[(8,)](x, x, num_warps=2)
    assert kernel.said == [("looked up", (8,), {"num_warps": 2}), *[("kept", (8, 1, 1), {})] * 2]


def test_what_triton_compiles_for_is_looked_up_again(launcher: Any) -> None:
    kernel, x = Kernel(), torch.zeros(64)
    kept = launcher(kernel)
    for arguments in ((x, 0), (x[1:], 0), (x, 16), (x[4:], 16), (x, 0), (x[1:], 0)):
        kept[(1,)](*arguments)
    assert [who for who, *_ in kernel.said] == ["looked up"] * 3 + ["kept"] * 3


def test_the_interpreter_compiles_nothing(launcher: Any) -> None:
    kernel, x = Kernel(compiles=False), torch.zeros(64)
    kept = launcher(kernel)
    for _ in range(3):
        kept[(8,)](x)
    assert [who for who, *_ in kernel.said] == ["looked up"] * 3
