"""Smaller tasks of the same kind: a task with smaller constants, for use where its own take too long."""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from math import prod

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources.assignments import constants
from kernelwright.kernelbench.sources.overrides import apply

_LEAST = 8  # what a constant is halved down to
_PRODUCT = 1 << 18  # of all constants: what a call works on, at about that scale
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def smaller(task: Task, product: int = _PRODUCT) -> Iterator[list[Task]]:
    """Yield sizes to try, each as alternatives, of which the reference accepts the first or a later one.

    The largest constants are halved until their product is `product`: even sizes, odd ones, and a long one
    beside short ones. Nothing if the task is already that small, or has no integer constants.
    """
    sizes = _sizes(task)
    if prod(sizes.values()) <= product:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    even = _halved(sizes, product)
    long = {**_halved(sizes | {largest: 1}, product // sizes[largest]), largest: sizes[largest]}
    for changed in (even, long):
        odd = {name: size - 1 if size != sizes[name] else size for name, size in changed.items()}
        first = next((name for name in odd if odd[name] != changed[name]), None)
        one_odd = changed | ({first: odd[first]} if first else {})
        wanted = [changed] if changed is even else [odd, one_odd, changed]
        if tasks := list(_tasks(task, sizes, wanted)):
            yield tasks
        if changed is even and (tasks := list(_tasks(task, sizes, [odd, one_odd]))):
            yield tasks


def share(task: Task, other: Task) -> float:
    """Return the ratio of the products of two tasks' constants."""
    return prod(_sizes(task).values()) / prod(_sizes(other).values())


def changed(task: Task, other: Task) -> str:
    """Return the other task's constants that differ: "batch_size=128, features=511"."""
    ours = constants(task.source)
    return ", ".join(f"{name}={v}" for name, v in constants(other.source).items() if v != ours.get(name))


def _sizes(task: Task) -> dict[str, int]:
    found = {}
    for name, text in constants(task.source).items():
        value = _whole(ast.parse(text, mode="eval").body)
        if value is not None and value > 1:
            found[name] = value
    return found


def _whole(value: ast.expr) -> int | None:
    """Return an integer, possibly written as `1024 * 2`; None if it depends on other constants."""
    if isinstance(value, ast.Constant):
        return value.value if type(value.value) is int else None
    if isinstance(value, ast.BinOp) and type(value.op) in _OPERATORS:
        left, right = _whole(value.left), _whole(value.right)
        if left is not None and right is not None:
            return _OPERATORS[type(value.op)](left, right)
    return None


def _halved(sizes: Mapping[str, int], product: int) -> dict[str, int]:
    found = dict(sizes)
    while prod(found.values()) > product:
        even = {name: size for name, size in found.items() if size % 2 == 0 and size >= 2 * _LEAST}
        if not even:
            break
        most = max(even, key=lambda name: even[name])
        found[most] //= 2
    return found


def _tasks(task: Task, sizes: Mapping[str, int], wanted: list[dict[str, int]]) -> Iterator[Task]:
    seen = [dict(sizes)]
    for found in wanted:
        if found in seen:
            continue
        seen.append(found)
        overrides = {name: str(size) for name, size in found.items() if size != sizes[name]}
        try:
            source = apply(task.source, overrides)
        except UsageError:  # a constant that others are made from
            continue
        yield task.model_copy(update={"source": source, "overrides": {**task.overrides, **overrides}})
