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
    beside short ones. A last alternative to the first two keeps the ratios of the constants, which a
    reference may rely on. Nothing if the task is already that small, or has no integer constants; those in a
    tuple count.
    """
    sizes = _sizes(task)
    if prod(sizes.values()) <= product:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    even, alike = _halved(sizes, product), _halved_alike(sizes, product)
    long = {**_halved(sizes | {largest: 1}, product // sizes[largest]), largest: sizes[largest]}
    for changed in (even, long):
        odd = {name: size - 1 if size != sizes[name] else size for name, size in changed.items()}
        one_odd = _one_odd(changed, sizes)
        wanted = [changed, alike] if changed is even else [odd, one_odd, changed]
        if tasks := list(_tasks(task, sizes, wanted)):
            yield tasks
        if changed is even and (tasks := list(_tasks(task, sizes, [odd, one_odd, _one_odd(alike, sizes)]))):
            yield tasks


def share(task: Task, other: Task) -> float:
    """Return the ratio of the products of two tasks' constants."""
    return prod(_sizes(task).values()) / prod(_sizes(other).values())


def changed(task: Task, other: Task) -> str:
    """Return the other task's constants that differ: "batch_size=128, features=511"."""
    ours = constants(task.source)
    return ", ".join(f"{name}={v}" for name, v in constants(other.source).items() if v != ours.get(name))


def _sizes(task: Task) -> dict[str, int]:
    """Return the integer constants over 1 by name, and those in tuples: `{"batch": 8, "kernel[1]": 7}`."""
    found = {}
    for name, text in constants(task.source).items():
        value = ast.parse(text, mode="eval").body
        for key, part in _parts(name, value).items():
            size = _whole(part)
            if size is not None and size > 1:
                found[key] = size
    return found


def _parts(name: str, value: ast.expr) -> dict[str, ast.expr]:
    """Return a constant's value by its name, or the values in a tuple or list by name and place."""
    if isinstance(value, ast.Tuple | ast.List):
        return {f"{name}[{place}]": part for place, part in enumerate(value.elts)}
    return {name: value}


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


def _halved_alike(sizes: Mapping[str, int], product: int) -> dict[str, int]:
    """Return the sizes with all large ones halved equally often; the sizes themselves if that cannot be.

    Where the output's 2 * 32 columns are normalized by 64 channels, `_halved` makes them 2 * 8 and 8.
    """
    found = dict(sizes)
    large = [name for name, size in sizes.items() if size >= 2 * _LEAST]
    while large and prod(found.values()) > product and all(found[name] % 2 == 0 for name in large):
        found.update({name: found[name] // 2 for name in large})
    return found if prod(found.values()) <= product else dict(sizes)


def _one_odd(changed: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return changed sizes of which the first is one less."""
    first = next((name for name, size in changed.items() if size != sizes[name] and size > 2), None)
    return {**changed, first: changed[first] - 1} if first else dict(changed)


def _tasks(task: Task, sizes: Mapping[str, int], wanted: list[dict[str, int]]) -> Iterator[Task]:
    seen = [dict(sizes)]
    for found in wanted:
        if found in seen:
            continue
        seen.append(found)
        overrides = _overrides(task, {name: size for name, size in found.items() if size != sizes[name]})
        try:
            source = apply(task.source, overrides)
        except UsageError:  # a constant that others are made from
            continue
        yield task.model_copy(update={"source": source, "overrides": {**task.overrides, **overrides}})


def _overrides(task: Task, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the values of constants by name, tuples whole: `{"kernel": "(3, 8)"}` for `{"kernel[1]": 8}`."""
    found: dict[str, str] = {}
    for name, text in constants(task.source).items():
        value = ast.parse(text, mode="eval").body
        parts = _parts(name, value)
        if sizes.keys().isdisjoint(parts):
            continue
        for place, part in enumerate(parts):
            new = ast.Constant(sizes[part]) if part in sizes else parts[part]
            if isinstance(value, ast.Tuple | ast.List):
                value.elts[place] = new
            else:
                value = new
        found[name] = ast.unparse(value)
    return found
