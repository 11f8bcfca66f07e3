"""Budgets and comparisons in blocks of rows are those of whole outputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from kernelwright.kernelbench.evaluator.correctness.budget import ErrorsOf, Expected, expect
from kernelwright.kernelbench.evaluator.correctness.comparison import compare
from kernelwright.kernelbench.evaluator.correctness.tolerance import Tolerance
from kernelwright.kernelbench.evaluator.memory import blocks
from kernelwright.kernelbench.evaluator.reference import agreement
from kernelwright.kernelbench.evaluator.reference.rounded import follows, unlike_the_reference

Function = Callable[[torch.Tensor], torch.Tensor]
X = torch.randn(6, 5, 40, generator=torch.Generator().manual_seed(0))
FUNCTIONS: dict[str, Function] = {
    "softmax": lambda x: x.softmax(-1),
    "relu, whose rows have few elements": lambda x: (x - 1.5).relu(),
    "cumsum, whose columns differ": lambda x: x.exp().cumsum(-1) ** 3,
    "sign, which jumps": lambda x: torch.sign(x * 1e8 % 2 - 1) + x,
    "infinities": lambda x: (60 * x).exp(),
    "columns first": lambda x: x.exp().transpose(0, 2),
}
_DIFFERENT = FUNCTIONS["cumsum, whose columns differ"]


@contextmanager
def blocks_of(elements: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MOST", elements)
        patch.setattr("kernelwright.kernelbench.evaluator.correctness.row_errors.library", lambda _: None)
        patch.setattr("kernelwright.kernelbench.evaluator.correctness.comparison.library", lambda _: None)
        yield


def budget(function: Function) -> Expected:
    x = X.clone()
    moved = x * (1 + torch.finfo(torch.float32).eps * (torch.arange(40) % 3 - 1))
    expected = expect(
        function(x.double()), function(x), [function(moved)], 40.0, by_column=function is _DIFFERENT
    )
    jumps = [function(x * (1 + n * 1e-6)) for n in (-1, 1)]
    return expected.with_room_for(function(moved)).across(jumps[:1], jumps)


@pytest.mark.parametrize("elements", [1, 64, 300])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_budget_is_the_same(name: str, elements: int) -> None:
    function = FUNCTIONS[name]
    with blocks_of(1 << 26):
        whole = budget(function)
    with blocks_of(elements):
        parts = budget(function)
    assert parts.few == whole.few and (parts.jumps is None) == (whole.jumps is None)
    torch.testing.assert_close(parts.tolerance(), whole.tolerance(), rtol=1e-12, atol=0, equal_nan=True)
    for a, b in zip(parts.between, whole.between, strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("off", [0.0, 1e-6, 1e-3, float("nan")])
def test_the_comparison_says_the_same(name: str, off: float) -> None:
    function = FUNCTIONS[name]
    expected = budget(function)
    output = function(X).clone()
    output[2, 3, 5] *= 1 + off
    with blocks_of(1 << 26):
        whole = compare(expected, output)
        distance = Tolerance(1e-6, 1e-6).distance(output, expected.reference)
    for elements in (1, 64, 300):
        with blocks_of(elements):
            assert compare(expected, output) == whole
            found = Tolerance(1e-6, 1e-6).distance(output, expected.reference)
            assert found == pytest.approx(distance, nan_ok=True)


def test_a_wrong_element_is_named_where_it_is() -> None:
    expected = budget(FUNCTIONS["softmax"])
    output = FUNCTIONS["softmax"](X)
    output[4, 3, 7] += 1
    with blocks_of(64):
        found = compare(expected, output)
    assert "1 of 1200 elements differ, first at [4, 3, 7]" in found.detail and found.far == 1


def test_errors_that_follow_a_shift_do_so_in_blocks() -> None:
    expected = budget(FUNCTIONS["softmax"])
    exact = expected.exact
    shifted = (exact * (1 + 1e-3 * torch.sin(torch.arange(1200.0).view(6, 5, 40)))).float()
    found = []
    for elements in (1 << 26, 64):
        with blocks_of(elements):
            own, errors = ErrorsOf(expected, expected.reference), ErrorsOf(expected, shifted)
            other = ErrorsOf(expected, expected.reference + 1e-4)
            found.append(
                (
                    unlike_the_reference(zip(errors, own, strict=True)),
                    follows(zip(errors, errors, own, strict=True)),
                    follows(zip(other, errors, own, strict=True)),
                )
            )
    assert found == [(True, True, False)] * 2


def test_a_large_output_is_sampled_for_the_reference_s_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = torch.randn(64, 8, 16)
    exact = reference.double()
    exact[::2] += 3.0
    assert agreement.share_off(reference, exact) == pytest.approx(0.5, abs=0.01)
    monkeypatch.setattr(agreement, "MOST", 500)
    assert agreement._thinned(reference).numel() <= 1000
