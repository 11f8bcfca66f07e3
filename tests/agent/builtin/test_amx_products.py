"""Products of float32 as six of bfloat16 on AMX tiles: as exact as the library's, with what follows in one kernel."""

from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.codegen.cpp.products import CHOICE, has_amx
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.kernelbench.records import Advice
from tests.helpers.builtin.proving import graph_of, load, source, task

pytestmark = pytest.mark.builds
needs_amx = pytest.mark.skipif(not has_amx(), reason="this CPU has no AMX tiles")
LINEAR = "self.up = nn.Linear(370, 500)"
CASES = {
    "linear, gelu, residual": (
        "return F.gelu(self.up(x)) + y", "torch.randn(3, 245, 370), torch.randn(3, 245, 500)", LINEAR, "x, y",
    ),
    "matmul": ("return x @ y", "torch.randn(345, 700), torch.randn(700, 637)", "pass", "x, y"),
    "by columns": ("return x @ y.t()", "torch.randn(345, 700), torch.randn(637, 700)", "pass", "x, y"),
    "whole tiles": ("return torch.relu(x @ y)", "torch.randn(512, 512), torch.randn(512, 512)", "pass", "x, y"),
    "more than a block": ("return x @ y", "torch.randn(1300, 133), torch.randn(133, 1290)", "pass", "x, y"),
    "a part of a matrix": ("return x[3:640, 1:451] @ y", "torch.randn(645, 460), torch.randn(450, 637)", "pass", "x, y"),
}  # fmt: skip


def proposed(text: str, gemm: str = CHOICE) -> str:
    advice = Advice(bottleneck="", method="", plan="", predicted_gain=1.0, schedule={"gemm": gemm})
    return BuiltinCoder(graph_of, Cpp()).propose(task(text), [], advice).source


@needs_amx
@pytest.mark.parametrize("name", CASES)
def test_products_are_as_exact_as_the_library_s(name: str, tmp_path: Path) -> None:
    forward, inputs, init, arguments = CASES[name]
    text = source(forward, inputs, init, arguments)
    found = proposed(text)
    assert "amx_multiply" in found and "F.linear" not in found
    reference, new = load(text, tmp_path), load(found, tmp_path)
    torch.manual_seed(0)
    model = reference.Model(*reference.get_init_inputs())
    candidate = new.ModelNew(*reference.get_init_inputs())
    candidate.load_state_dict(model.state_dict())
    for _ in range(2):  # the second call finds what the first has packed
        given = reference.get_inputs()
        with torch.no_grad():
            exact = model.double()(*[each.double() for each in given])
            errors = [
                ((each(*given).double() - exact).norm() / exact.norm()).item()
                for each in (model.float(), candidate)
            ]
        assert errors[1] < 2 * max(errors[0], 1e-7), errors


@needs_amx
def test_tiles_are_for_large_products_in_float32(tmp_path: Path) -> None:
    for inputs in (
        "torch.randn(127, 3000), torch.randn(3000, 3000)",
        "torch.randn(3000, 127), torch.randn(127, 3000)",
        "torch.randn(256, 256), torch.randn(256, 256)",
        "torch.randn(700, 700, dtype=torch.float64), torch.randn(700, 700, dtype=torch.float64)",
        "torch.randn(4, 700, 700), torch.randn(4, 700, 700)",
        "torch.randn(700, 700).t(), torch.randn(700, 700)",
    ):
        text = source("return torch.relu(x @ y) + 1", inputs, "pass", "x, y")
        assert "amx" not in proposed(text), inputs


def test_tiles_are_a_choice_where_there_are_some() -> None:
    assert ("gemm" in Cpp().defaults) is has_amx()
    text = source("return torch.relu(x @ y)", "torch.randn(700, 700), torch.randn(700, 700)", "pass", "x, y")
    assert "amx" not in proposed(text, "library")


def test_without_tiles_the_reference_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.agent.builtin.codegen.cpp.backend.has_amx", lambda: False)
    text = source("return torch.relu(x @ y)", "torch.randn(700, 700), torch.randn(700, 700)", "pass", "x, y")
    assert "gemm=bf16x6 needs AMX tiles, which this CPU has not" in proposed(text).partition("import")[0]
