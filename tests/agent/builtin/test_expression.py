"""Operators as trees: what is read off them, and how each language writes them."""

import math

import pytest

from kernelwright.agent.builtin.ir.expression import (
    X0,
    X1,
    Call,
    Const,
    Expression,
    X,
    call,
    unequal,
    walk,
    written,
)
from kernelwright.agent.builtin.ir.ops import POINTWISE
from kernelwright.agent.builtin.lowering.base import _is_of_integers


def text(tree: Expression) -> str:
    def leaf(node: Expression) -> str:
        if isinstance(node, X):
            return "ab"[node.number]
        assert isinstance(node, Const)
        return repr(node.value)

    return written(tree, leaf, lambda node: node.function)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (X0 * X0 * X0, "a * a * a"),
        ((X0 * X0) * (X0 * X0), "(a * a) * (a * a)"),
        (X0 * (1.0 - X1), "a * (1.0 - b)"),
        (X0 - (X1 - X0), "a - (b - a)"),
        (1.0 / (X0 * X0), "1.0 / (a * a)"),
        (X0 + 2.0 * X1, "a + 2.0 * b"),
        (-(X0 + X1), "-(a + b)"),
        (unequal(X0, 0.0) & (X1 > 0.0), "(a != 0.0) & (b > 0.0)"),
        (X0 * call("sigmoid", X0 + X1), "a * sigmoid(a + b)"),
    ],
)
def test_parentheses_are_where_both_c_and_python_need_them(tree: Expression, expected: str) -> None:
    assert text(tree) == expected


def test_a_tree_says_which_functions_it_calls() -> None:
    settings = {"min": 0.0, "max": 1.0}
    tree = POINTWISE["clamp"].tree(settings)
    assert [node.function for node in walk(tree) if isinstance(node, Call)] == ["at_most", "at_least"]


@pytest.mark.parametrize(
    ("op", "of_integers"), [("relu", True), ("sign", True), ("add", True), ("exp", False), ("isinf", False)]
)
def test_functions_of_floats_and_infinities_are_not_computed_in_integers(op: str, of_integers: bool) -> None:
    assert _is_of_integers(POINTWISE[op].tree({})) == of_integers
    assert not _is_of_integers(X0 + -math.inf)
