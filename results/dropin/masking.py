"""Gradients of which only some are wanted: with frozen weights, the code of theirs does not run."""

import ast
import re
from collections.abc import Mapping, Sequence

WANTED = "wanted"  # which gradients are, in the order in which they are returned


def masked(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the body of a function with the tests for what of it is wanted.

    Lines that several gradients need come first; each must be one assignment, the last one the return.

    >>> body = ["t = ops.t(w)", "a = ops.mm(grad, t)", "s = ops.t(x)", "b = ops.mm(s, grad)", "return (a, b)"]
    >>> print(*masked(body), sep="\\n")
    if wanted[0]:
        t = ops.t(w)
        a = ops.mm(grad, t)
    if wanted[1]:
        s = ops.t(x)
        b = ops.mm(s, grad)
    return (a if wanted[0] else None, b if wanted[1] else None)
    """
    needs = _needs(lines)
    returned = _returned(lines)
    lines = _with_masks(lines, needs)
    found = []
    for need in sorted(filter(None, dict.fromkeys(needs)), key=lambda each: (-len(each), needs.index(each))):
        own = [line for line, each in zip(lines, needs, strict=False) if each == need]
        if len(need) == len(returned):
            found += own
        else:
            found += [f"if {_any(need)}:", *(f"    {line}" for line in own)]
    values = ", ".join(f"{name} if {WANTED}[{place}] else None" for place, name in enumerate(returned))
    return (*found, f"return ({values}{',' if len(returned) == 1 else ''})")


def _with_masks(lines: Sequence[str], needs: Sequence[frozenset[int]]) -> list[str]:
    """Return the lines in which a convolution's gradients are told which of them are wanted.

    >>> lines = ["c = ops.convolution_backward.default(grad, x, w, [True, True, False])"]
    >>> lines += ["a = c[0]", "b = c[1]", "return (a, b)"]
    >>> _with_masks(lines, _needs(lines))[0]
    'c = ops.convolution_backward.default(grad, x, w, [wanted[0], wanted[1], False])'
    """
    found = list(lines)
    for place, line in enumerate(lines):
        parts = re.fullmatch(r"(\w+)( = .*\bconvolution_backward\b.*, \[)([\w, ]+)\]\)", line)
        if parts is None:
            continue
        name, head, mask = parts.groups()
        masks: list[frozenset[int]] = [frozenset()] * 3
        for other, need in zip(lines, needs, strict=False):
            if item := re.fullmatch(rf"\w+ = {name}\[(\d)\]", other):
                masks[int(item[1])] |= need
        wanted = [
            _any(need) if on == "True" and need else "False"
            for on, need in zip(mask.split(", "), masks, strict=True)
        ]
        found[place] = f"{name}{head}{', '.join(wanted)}])"
    return found


def products(lines: Sequence[str], flops: Mapping[str, int]) -> list[tuple[list[int], int]]:
    """Return for each product among the lines the gradients that need it, and its FLOPs."""
    names = [line.partition(" = ")[0] for line in lines]
    pairs = zip(names, _needs(lines), strict=False)
    return [(sorted(need), flops[name]) for name, need in pairs if name in flops]


def needs_of(lines: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Return for each argument the gradients that need it."""
    wanted: dict[str, set[int]] = {}
    _needs(lines, wanted)
    return [sorted(wanted.get(name, ())) for name in names]


def _needs(lines: Sequence[str], wanted: dict[str, set[int]] | None = None) -> list[frozenset[int]]:
    """Return for each line but the last the returned values that need it; the same of names in `wanted`."""
    wanted = {} if wanted is None else wanted
    for place, name in enumerate(_returned(lines)):
        wanted.setdefault(name, set()).add(place)
    found = []
    for line in reversed(lines[:-1]):
        (statement,) = ast.parse(line).body
        assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name), line
        need = wanted.get(statement.targets[0].id, set())
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Name):
                wanted.setdefault(node.id, set()).update(need)
        found.append(frozenset(need))
    return found[::-1]


def _returned(lines: Sequence[str]) -> list[str]:
    (statement,) = ast.parse(f"def f():\n {lines[-1]}").body[0].body  # type: ignore[attr-defined]
    return [each.id for each in statement.value.elts]


def _any(places: frozenset[int]) -> str:
    return " or ".join(f"{WANTED}[{place}]" for place in sorted(places))
