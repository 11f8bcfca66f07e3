"""Published checks accept what their own scripts would, and mutants differ from a right kernel in one place."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

from benchmarks.checks import oracles
from benchmarks.checks.judging import judge
from benchmarks.checks.mutants import REWRITES, WRAPPERS, mutants
from benchmarks.checks.published import CHECKS, CheckedTask

KERNELS = sorted(oracles.KERNELS.glob("*.py"))
Change = Callable[[torch.Tensor], torch.Tensor]


def subject(change: Change, scale: float = 1.0) -> CheckedTask:
    """A task that scales a matrix, and a candidate that changes its output."""

    class Scaling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * scale

    class Changed(Scaling):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return change(super().forward(x).clone())

    reference, candidate = ModuleType("reference"), ModuleType("candidate")
    vars(reference).update(Model=Scaling, get_inputs=lambda: [torch.randn(20, 20)], get_init_inputs=list)
    vars(candidate).update(ModelNew=Changed)
    return CheckedTask([reference, reference], candidate)


def with_first(value: float) -> Change:
    def change(y: torch.Tensor) -> torch.Tensor:
        y[0, 0] = value
        return y

    return change


ALL = set(CHECKS)
LOOSE = {"KernelBench, 1e-2", "FlashInfer-Bench", "SOL-ExecBench"}


@pytest.mark.parametrize(
    ("change", "accepting"),
    [
        (lambda y: y, ALL),
        (with_first(1e3), {"SOL-ExecBench"}),  # 1 of 400 elements
        (with_first(float("nan")), set()),
        (lambda y: y * 1.005, LOOSE),
        (lambda y: y + 5e-4, {*LOOSE, "GPU MODE, 1e-3"}),
        (lambda y: y * (1 + 5e-5), ALL - {"robust-kbench", "GPU MODE"}),
        (lambda y: y[None], {"robust-kbench"}),  # whose allclose broadcasts
    ],
)
def test_a_check_accepts_what_its_tolerance_allows(change: Change, accepting: set[str]) -> None:
    found = {name for name, check in CHECKS.items() if check(subject(change))}
    assert found == accepting


def test_one_check_wants_both_errors_to_be_large() -> None:
    by_half = subject(lambda y: y * 1.5, scale=1e-3)  # below 1e-2, all of it
    assert {name for name, check in CHECKS.items() if check(by_half)} == LOOSE
    by_half_percent = subject(lambda y: y * 1.005, scale=1e3)
    assert {name for name, check in CHECKS.items() if check(by_half_percent)} == LOOSE


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.stem)
def test_mutants_of_a_kernel_are_files_that_differ_from_it_and_each_other(kernel) -> None:  # type: ignore[no-untyped-def]
    source = kernel.read_text()
    found = list(mutants(source))
    assert len({mutant.source for mutant in found} | {source}) == len(found) + 1
    assert {wrapper.kind for wrapper in WRAPPERS} <= {mutant.kind for mutant in found}
    for mutant in found:
        compile(mutant.source, mutant.kind, "exec")


def test_every_kind_of_rewrite_has_a_place_in_some_kernel_and_every_kernel_has_sizes() -> None:
    found = {mutant.kind for kernel in KERNELS for mutant in mutants(kernel.read_text())}
    assert {rewrite.kind for rewrite in REWRITES} <= found
    assert [kernel.stem for kernel in KERNELS] == sorted(name.rpartition("/")[2] for name in oracles.SIZES)


def test_a_share_of_few_has_a_wide_interval() -> None:
    assert oracles.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert oracles.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert oracles.wilson(0, 0) == (0.0, 1.0)


@pytest.mark.slow
@pytest.mark.builds
def test_a_crash_is_no_acceptance_and_ends_nobody_else() -> None:
    right = (oracles.KERNELS / "cumsum.py").read_text()
    reference = (
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        return x.cumsum(-1)\n"
        "def get_inputs():\n    return [torch.randn(9, 64)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    crashing = right.replace("sum += x[r * columns + c];", "sum += x[r * columns + c + (1L << 40)];")
    found = judge([reference], right, right)
    assert found is not None and not found.differs
    # Sums in another order are off by more than GPU MODE's default, which its tasks of sums replace.
    assert {name for name, yes in found.accepted.items() if yes} >= ALL - {"GPU MODE"}
    found = judge([reference], crashing, right)
    assert found is not None and found.differs and not any(found.accepted.values())
    assert judge([reference], right.replace("float sum", "fload sum"), right) is None
