"""Modules with inputs of any length: axes have names, and the task file has them as constants."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.inputs import InputSpec, names_of, parse
from kernelwright.kernelbench.modules.locating import draw
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.kernelbench.modules.worker import write_in_worker
from kernelwright.kernelbench.modules.writing import free_task_source
from kernelwright.kernelbench.sources.names import resolve

LAYERS = """
from torch import nn


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2 + x.shape[0]
"""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        b, length, width = x.shape
        q, k, v = self.qkv(x).view(b, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True) + bias[:, None, :, None]
        mask = torch.ones(length, length).tril().sum(0)
        return self.out(y.transpose(1, 2).reshape(b, length, width)) * mask[:, None] / (b * length)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(x) < 20 else x * 3


def source_of(module: nn.Module, inputs: list[str], sizes: dict[str, int]) -> str:
    specs = parse(inputs)

    def at(lengths: Mapping[str, int]) -> tuple[TracedCall, tuple[str, ...]]:
        given = draw(specs, lengths)
        return trace_call(module, given.args, given.kwargs), given.codes

    axes = {n: (0, specs[0].shape.index(n)) for n in sizes}
    return free_task_source(at, sizes, axes)


def test_axes_may_have_names() -> None:
    first, second, third = parse(["B,L,256:bf16", "B 8x4", "mask=B,L:bool"])
    assert first == InputSpec(shape=("B", "L", 256), dtype="bfloat16")
    assert second == InputSpec(shape=("B", 8, 4), dtype="float32")
    assert third == InputSpec(name="mask", shape=("B", "L"), dtype="bool")
    assert names_of([first, second, third]) == ("B", "L")
    assert first.at({"B": 2, "L": 3}).shape == (2, 3, 256)
    for odd in ("B-1,4", "if,4", "4B,4", "0x4", "B,,:what"):
        with pytest.raises(UsageError):
            parse([odd])


def test_a_task_is_the_module_at_every_length() -> None:
    module = Attention().eval()
    source = source_of(module, ["B,L,64", "B,L"], {"B": 2, "L": 16})
    assert "B = 2\nL = 16\n" in source and "        L = x.shape[1]\n" in source
    assert "[torch.randn(B, L, 64), torch.randn(B, L)]" in source
    scope: dict[str, object] = {"__name__": "task"}
    exec(source, scope)
    model = scope["Model"]()  # type: ignore[operator]
    model.load_state_dict(module.state_dict())
    for batch, length in ((2, 16), (1, 1), (3, 40)):
        x, bias = torch.randn(batch, length, 64), torch.randn(batch, length)
        torch.testing.assert_close(model(x, bias), module(x, bias))


@pytest.mark.parametrize(
    ("module", "inputs", "sizes", "why"),
    [
        (Branching(), ["B,64"], {"B": 8}, "Branching is not one task for any B"),
        (Attention(), ["bias,L,64", "bias,L"], {"bias": 2, "L": 3}, "bias is the name of a value in forward"),
    ],
    ids=["another branch", "a name twice"],
)
def test_what_is_no_task_of_any_length(
    module: nn.Module, inputs: list[str], sizes: dict[str, int], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        source_of(module, inputs, sizes)


def test_names_need_sizes(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("layers")
    (folder / "layers.py").write_text(LAYERS)
    with pytest.raises(UsageError, match="no size is given for B in --input — give one, and others"):
        write_in_worker("layers.py", "Doubled", ["B,4"], [], folder)
    with pytest.raises(UsageError, match=r"B is \(2, 3\), which is no length"):
        write_in_worker("layers.py", "Doubled", ["B,4"], [], folder, {"B": "(2, 3)"})
    with pytest.raises(UsageError, match="no length is given for B in --input"):
        draw(parse(["B,4"]))


@pytest.mark.builds
def test_the_sizes_of_a_module_are_its_workload(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("layers")
    (folder / "layers.py").write_text(LAYERS)
    monkeypatch.chdir(folder)
    sizes = ["rows=6,weight=2", "rows=3,hidden"]
    (task,) = resolve(["layers.py:Doubled"], inputs=["rows,4"], sizes=sizes)
    assert "rows = 6\n" in task.source and "mul + rows" in task.source
    assert [(each.constants, each.weight, each.hidden) for each in task.workload] == [
        ({"rows": "6"}, 2.0, False),
        ({"rows": "3"}, 1.0, True),
    ]
