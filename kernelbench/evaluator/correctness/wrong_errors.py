"""Errors of wrong elements: rounded to a lower precision, shared along lines, growing, or smooth.

For outputs that are wrong nearly everywhere. What is named has to be a property of nearly all errors that are
looked at, and no other fault's that is known; random errors have none of them.
"""

import itertools
import math
from collections.abc import Callable

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected
from kernelwright.kernelbench.evaluator.correctness.wrong_sample import (
    FEW,
    NEARLY_ALL,
    Elements,
    WrongSample,
    flat_of,
    index_of,
)
from kernelwright.kernelbench.evaluator.correctness.wrong_values import CLOSE

# Chosen by hand.
_LINES, _POINTS = 32, 48  # lines along a dimension, and points on each
_PARTS, _GROWTH = 8, 8.0  # of a dimension along which errors grow, and by how much at least
_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_MANTISSAS = {torch.float64: 52, torch.float32: 23, torch.float16: 10}
# Median relative errors of a lower precision inside, as exponents of 2, from least to largest. Rounding to
# TF32 or fp16 leaves 2^-12.5, to bf16 2^-9.5; a product of rounded operands 2^-11.7 and 2^-8.8.
_LEVELS = {
    (-27.5, -23.5): (23, "fp32 arithmetic"),
    (-14.5, -10.6): (10, "TF32 or fp16 arithmetic (or bf16 in part of it)"),
    (-10.6, -7.5): (7, "bf16 arithmetic"),
}
_SPREAD = 10.0  # largest ratio of the quartiles of relative rounding errors; 5.8 for products
# Slope of found on expected values, at most; difference of neighbours' errors, relative; how much found
# values vary beside expected ones, at least.
_STEEPEST, _SMOOTH, _VARIED = 4.0, 0.1, 0.05
_MOST, _BRANCH = 0.75, 0.4  # least shares of neighbours that are so: gelu has two branches of the same values
_IN_ORDER = 128  # elements in order of value: so few that neighbours are not rounded alike
_DISORDER = 0.35  # least share of neighbours whose rounding errors have different signs


def error_pattern(
    sample: WrongSample,
    wrong: Elements,
    expected: Expected,
    actual: torch.Tensor,
    products: Callable[[], str],
) -> str:
    """Return a sentence on what the errors of an output are, or "".

    `products`: says whether they are those of products in a lower precision; takes runs of the reference.
    """
    every = Elements(expected, actual, index_of(sample.every, sample.shape))
    return (
        _rounded_result(wrong, actual.dtype)
        or _shared_along_lines(sample, expected, actual)
        or _wrong_function(every)
        or _growing(sample, every)
        or products()
        or _low_precision(sample, every, actual.dtype)
    )


def _rounded_result(wrong: Elements, kind: torch.dtype) -> str:
    """Recognize results that were stored in a lower precision, by values that are all numbers of it."""
    if kind not in _MANTISSAS:
        return ""
    there = (wrong.found != 0) & (wrong.wanted != 0)
    found, wanted = wrong.found[there], wrong.wanted[there]
    if len(found.unique()) < 4 * FEW or float((found / wanted - 1).abs().median()) > 2**-6:
        return ""
    for lower, name in _FORMATS.items():
        if torch.finfo(lower).bits >= torch.finfo(kind).bits and lower is not torch.bfloat16:
            continue

        def stored(values: torch.Tensor, lower: torch.dtype = lower) -> float:
            return float((values.to(lower).double() == values).double().mean())

        if stored(found) >= 0.999 and stored(wanted.to(kind).double()) < 0.5:
            return f"Every wrong element is a {name} number: the result was rounded to {name}."
    return ""


def _shared_along_lines(sample: WrongSample, expected: Expected, actual: torch.Tensor) -> str:
    """Recognize errors that are the same all along a dimension, but not from one such line to the next."""
    along = [d for d, size in enumerate(sample.shape) if size >= FEW // 2]
    found = [(d, _error_of_lines(sample, expected, actual, d)) for d in along]
    constant = [(d, how) for d, how in found if how]
    if not constant or len(constant) == len([size for size in sample.shape if size > 1]):
        return ""
    dimensions = ", ".join(str(d) for d, _ in constant)
    name = f"dimension {dimensions}" if len(constant) == 1 else f"dimensions {dimensions}"
    return (
        f"Along {name} all elements are off by the same {constant[0][1]}, which differs between such lines: "
        "a value that they share (a sum, mean, maximum, weight or bias) is wrong or missing."
    )


def _error_of_lines(sample: WrongSample, expected: Expected, actual: torch.Tensor, d: int) -> str:
    """Return "factor", "amount" or both if errors along dimension `d` are that, for each line; "" if not."""
    size = sample.shape[d]
    bases = index_of(sample.wrong, sample.shape)
    lines = flat_of([*bases[:d], torch.zeros_like(bases[d]), *bases[d + 1 :]], sample.shape).unique()
    lines = lines[:: -(-len(lines) // _LINES)]
    if len(lines) < FEW // 2:
        return ""
    points = torch.arange(size)[:: -(-size // _POINTS)]
    begins = index_of(lines, sample.shape)
    index = [each.repeat_interleave(len(points)) for each in begins]
    index[d] = points.repeat(len(lines))
    values = Elements(expected, actual, tuple(index))
    if not values.finite.all():
        return ""
    form = len(lines), len(points)
    found, wanted, error = (v.view(form) for v in (values.found, values.wanted, values.error))
    room = values.tolerance.view(form)
    wrong = (error.abs().median(1).values > 2 * room.median(1).values).double().mean()
    varied = (wanted.amax(1) - wanted.amin(1) > 10 * room.amax(1)).double().mean()
    if min(wrong, varied) < NEARLY_ALL:
        return ""
    factor = (found / wanted).nanmedian(1, keepdim=True).values
    amount = error.median(1, keepdim=True).values
    close = room + CLOSE * error.abs()
    centred = wanted - wanted.mean(1, keepdim=True)
    slope = (centred * found).mean(1, keepdim=True) / centred.square().mean(1, keepdim=True)
    for name, left, of_lines in (
        ("factor", found - factor * wanted, factor - 1),
        ("amount", error - amount, amount),
        ("factor and amount", found - found.mean(1, keepdim=True) - slope * centred, slope - 1),
    ):
        if float((left.abs() <= close).double().mean()) >= NEARLY_ALL and float(
            of_lines.std()
        ) > CLOSE * float(of_lines.abs().median()):
            return name
    return ""


def _wrong_function(every: Elements) -> str:
    """Recognize results that are another function of the right arguments, such as an approximation.

    Of elements in order of what is expected, neighbours are close to each other in what is found, and closer
    still in their errors.
    """
    chosen = every.finite & (every.error.abs() > every.tolerance)
    if int(chosen.sum()) < max(16 * FEW, len(every.found) // 3):
        return ""
    order = every.wanted[chosen].argsort()
    found, wanted, error, room = (
        values[chosen][order] for values in (every.found, every.wanted, every.error, every.tolerance)
    )
    near = found.diff().abs() <= _STEEPEST * wanted.diff() + 2 * room[1:]
    nearer = error.diff().abs() <= _SMOOTH * error[1:].abs()
    varied = float(found.std()) >= _VARIED * float(wanted.std())
    if not varied or float(near.double().mean()) < _MOST or float(nearer.double().mean()) < _BRANCH:
        return ""
    return (
        "The error depends on the expected value alone, and smoothly: indices and sums are right, and the "
        "function applied to them (a constant in it, or an approximation) is not."
    )


def _growing(sample: WrongSample, every: Elements) -> str:
    """Recognize errors that grow along a dimension, in themselves and relative to what is expected."""
    for d, size in enumerate(sample.shape):
        if size < 2 * _PARTS:
            continue
        part = (every.index[d] * _PARTS).div(size, rounding_mode="floor")
        members = [every.finite & (part == number) for number in range(_PARTS)]
        if min(int(mask.sum()) for mask in members) < 4 * FEW:
            continue
        errors = [float(every.error[mask].abs().median()) for mask in members]
        sizes = [float(every.wanted[mask].abs().median()) for mask in members]
        if min(sizes) == 0 or errors[-1] <= float(every.tolerance[members[-1]].median()):
            continue
        relative = [error / size for error, size in zip(errors, sizes, strict=True)]
        if all(_rises(values) for values in (errors, relative)):
            return (
                f"The error grows along dimension {d}, from {errors[0]:.2g} (median of the first eighth) to "
                f"{errors[-1]:.2g}: what is accumulated along it goes wrong step by step."
            )
    return ""


def _rises(values: list[float]) -> bool:
    steps = sum(after > before for before, after in itertools.pairwise(values))
    return steps >= len(values) - 2 and values[-1] >= _GROWTH * values[0]


def _low_precision(sample: WrongSample, every: Elements, kind: torch.dtype) -> str:
    """Recognize relative errors of the size of a lower precision's, nearly everywhere and of random sign.

    A wrong constant or a coarse approximation has errors of that size, too, but smooth ones: elements of
    nearly the same value, or neighbours, have errors of the same sign.
    """
    there = every.finite & (every.wanted != 0)
    if kind not in _MANTISSAS or sample.count < 0.5 * sample.elements or int(there.sum()) < 16 * FEW:
        return ""
    wanted, error = every.wanted[there], every.error[there]
    low, median, high = (error / wanted).abs().quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
    if low == 0 or high > _SPREAD * low:
        return ""
    by_value = error[wanted.argsort()]
    if min(_disorder(error), _disorder(by_value[:: -(-len(by_value) // _IN_ORDER)])) < _DISORDER:
        return ""
    exponent = math.log2(median)
    for (least, largest), (bits, name) in _LEVELS.items():
        if least <= exponent < largest and bits < _MANTISSAS[kind] - 2:
            return (
                f"The median relative error is 2^{exponent:.1f}, and signs are random: it looks like {name} "
                f"where {str(kind).removeprefix('torch.')} is needed."
            )
    return ""


def _disorder(error: torch.Tensor) -> float:
    """Return the share of neighbours whose signs differ; about a half of random ones."""
    return float((error[1:].sign() != error[:-1].sign()).double().mean())
