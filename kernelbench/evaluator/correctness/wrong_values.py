"""Values of wrong elements: zeros, NaN, off by a constant offset or factor, or from another index.

Each pattern is tried on some thousands of elements and has to hold for nearly all of them; the first that
does is named.
"""

import itertools
import math
from collections.abc import Iterator

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected
from kernelwright.kernelbench.evaluator.correctness.wrong_sample import FEW, Elements, Index

# Chosen by hand.
CLOSE = 0.02  # difference, relative to an error, by which constant errors may differ
_MOVED = 512  # elements of which it is tried whether they belong elsewhere
_SHIFTS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def value_pattern(wrong: Elements, expected: Expected, actual: torch.Tensor) -> str:
    """Return a sentence on what these wrong elements, which are finite, hold, or ""."""
    return _constant_value(wrong) or _offset_or_factor(wrong) or _from_elsewhere(wrong, expected, actual)


def not_finite(wrong: Elements) -> str:
    """Return a sentence on wrong elements that are not finite, or should not be; "" if there are none."""
    nan = wrong.found.isnan() & ~wrong.wanted.isnan()
    infinite = wrong.found.isinf() & wrong.wanted.isfinite()
    missing = wrong.found.isfinite() & ~wrong.wanted.isfinite()
    for mask, named in (
        (nan, "NaN where a number is expected: inf - inf, 0 / 0, or memory that was not written"),
        (infinite, "infinite where a finite number is expected: an overflow or a division by zero"),
        (missing, "finite where an infinity or NaN is expected"),
    ):
        share = float(mask.double().mean())
        if share > 0:
            how_many = "All" if share == 1 else f"{share:.0%}" if share >= 0.01 else "Some"
            others = wrong.found[~mask]
            zeros = " The others are 0." if len(others) and not others.any() else ""
            return f"{how_many} of the wrong elements are {named}.{zeros}"
    return ""


def _constant_value(wrong: Elements) -> str:
    found, wanted = wrong.found, wrong.wanted
    if wrong.hold(found == 0):
        return "The values found there are all 0."
    middle = float(found.median()) if len(found) else 0.0
    if wrong.hold(found == middle) and len(wanted.unique()) >= FEW:
        return f"The values found there are all {middle:.6g}."
    if wrong.hold(wanted == 0) and len(found.unique()) >= FEW:
        sign = "negative " * wrong.hold(found < 0) or "positive " * wrong.hold(found > 0)
        return f"All of them should be 0 and are {sign}numbers: a mask or an activation is missing."
    return ""


def _offset_or_factor(wrong: Elements) -> str:
    found, wanted, error = wrong.found, wrong.wanted, wrong.error
    if len(found) < FEW or len(wanted.unique()) < FEW:
        return ""
    offset = float(error.median())
    room = wrong.tolerance + wrong.rounding
    if offset and wrong.hold((error - offset).abs() <= room.clamp(max=CLOSE * abs(offset))):
        return f"Every wrong element is too {'large' if offset > 0 else 'small'} by {abs(offset):.6g}."
    scaled = wanted != 0
    factor = float((found[scaled] / wanted[scaled]).median()) if bool(scaled.any()) else 0.0
    if factor in (0.0, 1.0) or not math.isfinite(factor):
        return ""
    room = torch.minimum(max(1.0, abs(factor)) * wrong.tolerance + wrong.rounding, CLOSE * error.abs())
    if not wrong.hold((found - factor * wanted).abs() <= room):
        return ""
    if abs(factor + 1) < 1e-3:
        return "Every wrong element has the wrong sign and the right size."
    return f"Every wrong element is {factor:.6g}{_fraction(factor)} times what is expected."


def _fraction(factor: float) -> str:
    """Name a factor below one as a fraction, where it is one."""
    inverse = 1 / factor
    whole = round(inverse)
    return f" (1/{whole})" if abs(inverse) > 1.5 and abs(inverse - whole) < 1e-4 * abs(inverse) else ""


def _from_elsewhere(wrong: Elements, expected: Expected, actual: torch.Tensor) -> str:
    """Recognize values that belong at other indices, by a rule."""
    if len(wrong.found) < FEW:
        return ""
    chosen = (
        torch.randperm(len(wrong.found), generator=torch.Generator().manual_seed(0))[:_MOVED].sort().values
    )
    index, found = tuple(each[chosen] for each in wrong.index), wrong.found[chosen]
    for moved, there, named in _rules(index, tuple(actual.shape)):
        if int(there.sum()) < max(FEW, len(found) // 2):
            continue
        home = Elements(expected, actual, tuple(each[there] for each in moved))
        same = home.wanted.isfinite() & ((found[there] - home.wanted).abs() <= home.tolerance)
        if wrong.hold(same) and len(found[there][same].unique()) >= FEW:
            return named
    return ""


def _rules(index: Index, shape: tuple[int, ...]) -> Iterator[tuple[Index, torch.Tensor, str]]:
    """Yield other indices for these, which of them exist, and what it means if the values are from there."""
    everywhere = torch.ones(len(index[0]), dtype=torch.bool)

    def changed(d: int, to: torch.Tensor) -> Index:
        return (*index[:d], to, *index[d + 1 :])

    dimensions = [d for d in reversed(range(len(shape))) if shape[d] > 1]
    for shift, d, sign in itertools.product(_SHIFTS, dimensions, (1, -1)):
        if shift < shape[d]:
            to = index[d] + sign * shift
            there = (to >= 0) & (to < shape[d])
            named = f"Index i along dimension {d} holds what belongs at i {'+' if sign > 0 else '-'} {shift}."
            yield changed(d, to.clamp(0, shape[d] - 1)), there, named
    for p, q in itertools.combinations(sorted(dimensions), 2):
        if all(shape[d] == 1 for d in range(p + 1, q)):
            flat = index[p] * shape[q] + index[q]  # also where they are of different sizes
            p_index, q_index = flat % shape[p], flat // shape[p]
        elif shape[p] == shape[q]:
            p_index, q_index = index[q], index[p]
        else:
            continue
        to = list(index)
        to[p], to[q] = p_index, q_index
        yield (
            tuple(to),
            everywhere,
            f"The values are right but transposed: dimensions {p} and {q} are swapped.",
        )
    for d in dimensions:
        named = f"The values are right but in reverse order along dimension {d}."
        yield changed(d, shape[d] - 1 - index[d]), everywhere, named
        named = f"Every index along dimension {d} holds what belongs at index 0."
        yield changed(d, torch.zeros_like(index[d])), everywhere, named
