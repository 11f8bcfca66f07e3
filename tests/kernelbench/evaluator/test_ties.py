"""Of equal values any index is right, where torch promises no order; no element is named twice."""

import math
from collections.abc import Callable

import pytest
import torch

from kernelwright.kernelbench.evaluator.correctness.budget import expect
from kernelwright.kernelbench.evaluator.correctness.comparison import compare
from kernelwright.kernelbench.evaluator.correctness.ties import Rankings

TIED = torch.tensor([[3.0, 1.0, 3.0, 2.0, 1.0], [0.0, 0.0, 5.0, 5.0, 4.0]])
OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "topk": lambda x: x.topk(3, dim=1).indices,
    "sort": lambda x: x.sort(dim=1).indices,
    "argsort": lambda x: x.argsort(dim=1),
    "along_columns": lambda x: x.T.topk(3, dim=0).indices,
}


def error(operator: Callable[[torch.Tensor], torch.Tensor], actual: torch.Tensor) -> float:
    with Rankings() as rankings:
        wanted = operator(TIED.double())
    expected = expect(wanted, wanted, [], 1.0)
    found = rankings.of(wanted)
    rankings_found = () if found is None else (found,)
    return compare(expected.__class__(**{**vars(expected), "rankings": rankings_found}), actual).error


def other(operator: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The indices that it would have given, had it looked from the other end."""
    return TIED.shape[1] - 1 - operator(TIED.flip(1))


def test_what_was_ranked_may_be_overwritten_later() -> None:
    def overwritten(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        found = x.topk(2, dim=1).indices
        x.zero_()
        return found

    assert error(overwritten, torch.tensor([[2, 0], [3, 2]])) == 0.0
    assert error(overwritten, torch.tensor([[0, 1], [2, 3]])) == math.inf


@pytest.mark.parametrize("name", OPERATORS)
def test_an_index_of_an_equal_value_is_right(name: str) -> None:
    operator = OPERATORS[name]
    assert error(operator, operator(TIED)) == 0.0
    assert not torch.equal(other(operator), operator(TIED))
    assert error(operator, other(operator)) == 0.0


@pytest.mark.parametrize("keepdim", [False, True])
def test_so_is_one_of_a_single_rank(keepdim: bool) -> None:
    second = torch.tensor([4, 1]).view(2, *keepdim * [1])
    assert error(lambda x: x.kthvalue(2, dim=1, keepdim=keepdim).indices, second) == 0.0
    middle = torch.tensor([3, 4]).view(2, *keepdim * [1])
    assert error(lambda x: x.median(dim=1, keepdim=keepdim).indices, middle) == 0.0
    assert error(lambda x: x.median(dim=1, keepdim=keepdim).indices, second) == float("inf")


@pytest.mark.parametrize("name", ["topk", "sort", "argsort"])
def test_the_same_element_twice_is_wrong(name: str) -> None:
    twice = OPERATORS[name](TIED).clone()
    twice[0] = torch.where(TIED[0, twice[0]] == 3.0, 0, twice[0])
    assert error(OPERATORS[name], twice) == float("inf")


@pytest.mark.parametrize("wrong", [-1, 5, 3])
def test_no_element_and_another_value_are_wrong(wrong: int) -> None:
    indices = OPERATORS["topk"](TIED).clone()
    indices[0, 0] = wrong
    assert error(OPERATORS["topk"], indices) == float("inf")


@pytest.mark.parametrize(
    "operator",
    [lambda x: x.argmax(1), lambda x: x.max(1).indices, lambda x: torch.sort(x, dim=1, stable=True).indices],
    ids=["argmax", "max", "stable_sort"],
)
def test_where_torch_says_which_it_is_that_one(operator: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert error(operator, operator(TIED)) == 0.0
    assert error(operator, other(operator)) == float("inf")
