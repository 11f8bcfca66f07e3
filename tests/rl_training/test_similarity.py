"""What counts as a near-duplicate, and what does not."""

import itertools

import pytest

from kernelwright.kernelbench import sources
from kernelwright.rl_training.similarity import ALIKE, likeness, nearest, reference_shingles, shingles
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel


def alike(one: str, other: str) -> float:
    return likeness(shingles(one), shingles(other))


SAME = {
    "names": kernel().replace("long i", "long k").replace("[i]", "[k]").replace("i <", "k <").replace("++i", "++k"),
    "the kernel's name": kernel().replace("run(", "relu("),
    "the module's name and attributes": kernel().replace("lib", "built"),
    "comments": kernel().replace("#pragma", "// all cores\n    #pragma").replace("y = torch", "# new\n        y = torch"),
    "a docstring": '"""Relu."""\n' + kernel(),
    "annotations": kernel().replace("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:"),
    "layout": kernel().replace("    for (long", "    for  (long"),
    "numbers": kernel().replace("x[i] > 0", "x[i] > 0.5"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_of_no_account(what: str) -> None:
    assert SAME[what] != kernel()
    assert alike(kernel(), SAME[what]) == 1.0


def test_what_a_kernel_computes_is_of_account() -> None:
    assert alike(kernel("x[i] + x[i]"), kernel("x[i] * x[i]")) < 1.0
    assert alike(kernel("std::exp(x[i])"), kernel("std::tanh(x[i])")) < 1.0
    assert all(alike(kernel(a), kernel(b)) < ALIKE for a, b in itertools.combinations(EXPRESSIONS, 2))


def test_a_reference_is_what_it_computes_not_its_sizes() -> None:
    relu = builtin_task("level1/relu").source
    smaller = relu.replace("batch_size = 1024", "batch_size = 8").replace("torch.randn(", "5 + torch.randn(")
    assert smaller != relu
    assert likeness(reference_shingles(relu), reference_shingles(smaller)) == 1.0


def test_in_the_builtin_suite_only_the_plain_matrix_products_are_one_task() -> None:
    suite = sources.resolve(["builtin"])
    found = {task.id.partition("/")[2]: reference_shingles(task.source) for task in suite}
    pairs = [pair for pair in itertools.combinations(found, 2) if likeness(*map(found.get, pair), ALIKE)]  # type: ignore[arg-type]
    assert len(pairs) == 21  # of seven tasks, all `A @ B`
    assert {name.partition("_")[0] for pair in pairs for name in pair} == {"matmul", "matvec"}


def test_what_is_no_python_is_compared_all_the_same() -> None:
    assert alike("this is (not python", "this is (not python") == 1.0
    assert alike("", "") == 0.0


def test_the_nearest_come_first() -> None:
    others = [(e, shingles(kernel(e))) for e in ("x[i] * x[i]", "x[i] + x[i]")]
    found = nearest(shingles(kernel("x[i] + x[i] + x[i]")), others, at_least=0.1)
    assert [key for key, _ in found] == ["x[i] + x[i]", "x[i] * x[i]"]
    assert nearest(shingles(kernel()), others, at_least=1.0) == []
