"""Right-hand sides of operators as trees, which each language writes with its own names and numbers.

`X0 * call("sigmoid", X0)` is `x * sigmoid_f32(x)` in C++ and `x * sigmoid(x)` in Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Number: TypeAlias = float | int | bool
_LEVELS = {"*": 2, "/": 2, "+": 1, "-": 1}  # how tightly a sign binds; all others need parentheses
_TIGHTEST = 3


Operator: TypeAlias = Callable[["Expression", "Expression | Number"], "Expression"]


def _infix(sign: str) -> Operator:
    return lambda left, right: Infix(sign, left, _tree(right))


def _reflected(sign: str) -> Operator:
    return lambda right, left: Infix(sign, _tree(left), right)


class Expression:
    """A node of a tree. Python's operators make larger ones, but for `equal` and `unequal`."""

    __add__, __radd__ = _infix("+"), _reflected("+")
    __sub__, __rsub__ = _infix("-"), _reflected("-")
    __mul__, __rmul__ = _infix("*"), _reflected("*")
    __truediv__, __rtruediv__ = _infix("/"), _reflected("/")
    __and__, __or__, __xor__ = _infix("&"), _infix("|"), _infix("^")
    __lt__, __le__, __gt__, __ge__ = _infix("<"), _infix("<="), _infix(">"), _infix(">=")

    def __neg__(self) -> Expression:
        return Negative(self)


@dataclass(frozen=True)
class X(Expression):
    """An operand, by its number. An empty `dtype` is the one that the operator computes in."""

    number: int
    dtype: str = ""


@dataclass(frozen=True)
class Const(Expression):
    value: Number
    dtype: str = ""


@dataclass(frozen=True)
class Position(Expression):
    """A value that depends on where, or when, the operator is carried out."""

    kind: Literal["index", "first step", "before"]


@dataclass(frozen=True)
class Lookup(Expression):
    """The element of a table at an index."""

    table: X
    index: X


@dataclass(frozen=True)
class Call(Expression):
    """A call of one of the languages' functions; of an `overloaded` one there is one for each dtype."""

    function: str
    arguments: tuple[Expression, ...]
    dtype: str = ""
    overloaded: bool = True


@dataclass(frozen=True)
class Infix(Expression):
    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Negative(Expression):
    operand: Expression


X0, X1, X2 = X(0), X(1), X(2)
INDEX = Position("index")  # of an element in its row
FIRST_STEP = Position("first step")  # whether the step of a recurrence is its first
BEFORE = Position("before")  # the value that a step hands to the next


def call(function: str, *arguments: Expression | Number, dtype: str = "") -> Call:
    return Call(function, tuple(map(_tree, arguments)), dtype)


def equal(left: Expression, right: Expression | Number) -> Expression:
    return Infix("==", left, _tree(right))


def unequal(left: Expression, right: Expression | Number) -> Expression:
    return Infix("!=", left, _tree(right))


def walk(tree: Expression) -> Iterator[Expression]:
    """Return the nodes of a tree, itself first."""
    yield tree
    match tree:
        case Call():
            children = tree.arguments
        case Infix():
            children = (tree.left, tree.right)
        case Negative():
            children = (tree.operand,)
        case Lookup():
            children = (tree.table, tree.index)
        case _:
            children = ()
    for child in children:
        yield from walk(child)


def written(tree: Expression, leaf: Callable[[Expression], str], function: Callable[[Call], str]) -> str:
    """Return a tree as text.

    `leaf` writes operands, numbers, places and lookups, `function` the name of a call.
    """

    def text(node: Expression) -> str:
        match node:
            case Call():
                return f"{function(node)}({', '.join(map(text, node.arguments))})"
            case Negative():
                return f"-{_grouped(text(node.operand), _level(node.operand) < _TIGHTEST)}"
            case Infix(sign=sign, left=left, right=right):
                level = _LEVELS.get(sign, 0)
                below = _level(left) < level or (_level(left) == level and level in (0, _level(right)))
                beside = _level(right) <= level
                return f"{_grouped(text(left), below)} {sign} {_grouped(text(right), beside)}"
            case _:
                return leaf(node)

    return text(tree)


def _level(node: Expression) -> int:
    return _LEVELS.get(node.sign, 0) if isinstance(node, Infix) else _TIGHTEST


def _grouped(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def _tree(value: Expression | Number) -> Expression:
    return value if isinstance(value, Expression) else Const(value)
