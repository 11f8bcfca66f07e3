"""Sizes as text, polynomials through several forms, and the ranges in which they stay within a value."""

import doctest
import math

import pytest

from kernelwright.agent.builtin.ir.program import Constant, View, contiguous
from kernelwright.agent.builtin.sizes.bounds import Ranges
from kernelwright.kernelbench.free_sizes import size as sizes
from kernelwright.kernelbench.free_sizes.size import FreeSize, is_free
from kernelwright.kernelbench.free_sizes.unify import Grid, SizesDecide, at, primes, unified

BATCH, LENGTH = FreeSize(101, {("batch",): 1}), FreeSize(211, {("length",): 1})
GRID = Grid({"batch": 17, "length": 19}, {"batch": 23, "length": 29}, ({"batch": 31, "length": 37},))


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(sizes).failed == 0


def test_arithmetic_keeps_names_where_it_is_exact() -> None:
    rows = BATCH * LENGTH
    assert repr(math.prod((2, BATCH, LENGTH))) == "batch * length * 2"
    assert repr(rows * 96 // (LENGTH * 32)) == "batch * 3"
    assert repr(sum([LENGTH, -1])) == "length - 1"
    assert (rows * 96 % 32, is_free(rows * 96 % 32)) == (0, False)
    assert not is_free(LENGTH - LENGTH, LENGTH // 2, LENGTH % 2)
    assert f"row / {LENGTH * 2}" == "row / (length * 2)"
    assert f"row / {LENGTH}" == "row / length"


def _view(batch: int, length: int) -> View:
    shape = (batch, length - 1, 8)
    return View("x", shape, contiguous((batch, length, 8)), offset=8)


def test_what_differs_between_forms_is_written_in_names() -> None:
    forms = [_view(point["batch"], point["length"]) for point in GRID.points]
    found = unified(forms, GRID)
    assert repr(found.shape) == "(batch, length - 1, 8)"
    assert repr(found.strides) == "(length * 8, 8, 1)"
    assert at(found, {"batch": 3, "length": 5}) == _view(3, 5)


def test_squares_and_whole_numbers_that_are_divided_by_are_found() -> None:
    forms = [(p["length"] ** 2 * 3, Constant(float(p["batch"] * 8))) for p in GRID.points]
    found = unified(forms, GRID)
    assert repr(found) == "(length * length * 3, Constant(value=batch * 8))"


@pytest.mark.parametrize(
    "odd", [lambda p: p["batch"] // 2, lambda p: "a" * p["batch"], lambda p: (0,) * p["batch"]]
)
def test_what_is_no_polynomial_is_refused(odd) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SizesDecide, match="depends on the free sizes"):
        unified([odd(point) for point in GRID.points], GRID)


def test_one_more_point_is_held_against_the_others() -> None:
    forms = [min(point["batch"], 30) for point in GRID.points]
    with pytest.raises(SizesDecide):
        unified(forms, GRID)


def test_ranges_are_narrowed_by_one_size_and_never_by_a_mix() -> None:
    ranges = Ranges()
    assert ranges.hold(BATCH * LENGTH - BATCH)  # 0 for a length of 1
    assert not ranges.hold(BATCH - LENGTH)
    assert ranges.hold(64 - LENGTH, LENGTH - 8)
    assert ranges.limits == {"length": (8, 64)}
    assert ranges.hold(BATCH * LENGTH - BATCH * 8)
    assert not ranges.hold(LENGTH - 65)


def test_primes_leave_out_what_is_taken() -> None:
    found = primes(16, {17})
    assert [next(found) for _ in range(3)] == [19, 23, 29]
