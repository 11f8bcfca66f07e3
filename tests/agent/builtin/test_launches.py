"""Small work in several places is one launch; equal work is one kernel, told where its values begin."""

import re
from pathlib import Path

import pytest

from kernelwright.agent.builtin.scheduling.launches import SMALL
from tests.helpers.builtin.launches import CASES, REPEATED, written
from tests.helpers.builtin.proving import HEAD, propose, prove, source

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("name", CASES)
def test_small_work_shares_launches(name: str, tmp_path: Path) -> None:
    found = prove(REPEATED[name], tmp_path).source
    assert (len(re.findall('extern "C"', found)), found.count("lib.")) == CASES[name][2]


def test_threads_share_calls_that_are_worth_it() -> None:
    few, many = (
        propose(written(f"return [torch.exp(x[i]) for i in range({n})]", f"torch.randn({n}, 2048)")).source
        for n in (4, 64)
    )
    assert "omp parallel" not in few
    assert "#pragma omp parallel for schedule(static)\n    for (int64_t call = 0; call < 64; ++call)" in many
    few, many = (
        propose(
            written("return x * 2, y.t() + 1, x.abs().sum(-1)", f"torch.randn(64, {n}), torch.randn(64, {n})")
        )
        for n in (10, SMALL // 128)
    )
    assert "omp parallel" not in few.source
    assert many.source.count("#pragma omp section\n") == 2, many.source


def test_where_calls_begin_is_a_formula_or_a_table() -> None:
    orders = ((0, 1, 2, 3), (1, 3, 5, 7), (5, 0, 3, 2))
    forwards = (f"return [torch.exp(x[i]) for i in {order}]" for order in orders)
    begins = [propose(written(forward, "torch.randn(8, 300)")).source for forward in forwards]
    assert "call * 300)" in begins[0]
    assert "300 + call * 600)" in begins[1]
    assert "X_AT[] = {1500, 0, 900, 600}" in begins[2]


PARTS_OF_INPUTS = """
class Part(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.at = at
    def forward(self, x):
        return torch.exp(x[self.at]) * 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Part(0), Part(1)
    def forward(self, x):
        if x.sum() > 1e9:
            return x
        return self.a(x) + self.b(x)

def get_inputs():
    return [torch.randn(2, 50)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("language", ["cpp", "triton"])
def test_parts_of_a_model_that_begin_elsewhere_have_kernels_of_their_own(
    language: str, tmp_path: Path
) -> None:
    found = HEAD + PARTS_OF_INPUTS
    if language == "cpp":
        prove(found, tmp_path)
    assert propose(found, language).source.count("exp_mul") > propose(
        found.replace("Part(0), Part(1)", "Part(1), Part(1)"), language
    ).source.count("exp_mul")


def test_work_that_threads_share_keeps_them_beside_other_work() -> None:
    """A parallel loop within a parallel section would have one thread."""
    text = written(
        "return *[torch.exp(w) for w in self.big], torch.softmax(y, -1)",
        "torch.randn(1), torch.randn(20, 33)",
    ).replace(
        "self.w =", "self.big = nn.ParameterList(torch.randn(30000) for _ in range(4))\n        self.w ="
    )
    found = propose(text).source
    assert found.count("omp parallel for") == 1 and "omp parallel sections" not in found
    assert found.count("lib.") == 1


def test_values_that_are_called_like_kernels_are_called_otherwise(tmp_path: Path) -> None:
    init = "self.tanh_kernel = nn.Parameter(torch.randn(50))"
    found = source(
        "return torch.tanh(self.tanh_kernel), torch.softmax(x, -1)", "torch.randn(20, 33)", init=init
    )
    assert "tanh_kernel(tanh_kernel_2," in prove(found, tmp_path).source


def test_warps_of_kernels_that_are_launched_together_are_no_knobs() -> None:
    found = propose(REPEATED["of several kinds"], "triton").schedule
    assert "k0.block" in found or "k0.rows" in found
    beside = [knob for knob in found if knob.endswith(".warps")]
    assert len(beside) == 1  # of the sum of everything, which has a launch of its own
