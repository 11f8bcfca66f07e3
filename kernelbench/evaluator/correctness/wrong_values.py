"""Values of wrong elements: zeros, NaN, off by a constant, from elsewhere, rounded to a lower precision.

Each pattern is tried on some thousands of elements and has to hold for nearly all of them; the first that
does is named.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected
from kernelwright.kernelbench.evaluator.correctness.wrong_sample import Index, WrongSample, flat_of, index_of

# Chosen by hand.
_NEARLY_ALL = 0.95  # share of the elements for which a pattern has to hold
_FEW = 8  # elements, or distinct values of them, fewer of which show no pattern
_CLOSE = 0.02  # difference, relative to an error, by which constant errors may differ
_MOVED = 512  # elements of which it is tried whether they belong elsewhere
_SHIFTS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LINES, _POINTS = 32, 48  # lines along a dimension, and points on each
_PARTS, _GROWTH = 8, 8.0  # of a dimension along which errors grow, and by how much at least
_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_MANTISSAS = {torch.float64: 52, torch.float32: 23, torch.float16: 10}
# Median relative errors of a lower precision inside, as exponents of 2, from least to largest. Rounding to
# TF32 or fp16 leaves 2^-12.5, to bf16 2^-9.5; a product of rounded operands 2^-11.7 and 2^-8.8.
_LEVELS = {
    (-27.5, -23.5): (23, "fp32 inside"),
    (-14.5, -10.6): (10, "TF32 or fp16 inside (or bf16 in part of it)"),
    (-10.6, -7.5): (7, "bf16 inside"),
}
_SPREAD = (
    10.0  # largest ratio of the quartiles of relative rounding errors; 5.8 for quotients of normal numbers
)
_IN_ORDER = 128  # elements in order of value: so few that neighbours are not rounded alike
_DISORDER = 0.35  # least share of neighbours whose rounding errors have different signs


class _Values:
    """Expected and found values of some elements, and by how much they may differ; on the CPU, in float64."""

    def __init__(self, expected: Expected, actual: torch.Tensor, index: Index) -> None:
        at = tuple(part.to(actual.device) for part in index)
        point = expected.at(at)
        self.index = index
        self.found = actual[at].double().cpu()
        self.wanted = point.exact.double().cpu()
        self.error = self.found - self.wanted
        whole = not expected.reference.is_floating_point()
        self.tolerance = torch.zeros_like(self.error) if whole else point.tolerance().cpu()
        # What values that are off by something are rounded by, beyond what the expected ones are.
        self.rounding = (
            torch.zeros_like(self.error) if whole else self.found.abs() * torch.finfo(actual.dtype).eps
        )
        self.finite = self.found.isfinite() & self.wanted.isfinite()

    def hold(self, right: torch.Tensor) -> bool:
        """Return True if a pattern holds for nearly all elements, and these are not too few."""
        return len(right) >= _FEW and float(right.double().mean()) >= _NEARLY_ALL


def what(sample: WrongSample, expected: Expected, actual: torch.Tensor, products: Callable[[], str]) -> str:
    """Return a sentence on what the wrong elements of an output hold, or "".

    `products`: says whether errors are those of products in a lower precision; takes runs of the reference.
    """
    if sample.unwritten:
        return (
            f"{sample.unwritten} of them hold what fresh memory is filled with before each call: they were "
            "never written."
        )
    wrong = _Values(expected, actual, index_of(sample.wrong, sample.shape))
    if said := _not_finite(wrong):
        return said
    if not wrong.finite.all():
        sample_finite = sample.wrong[wrong.finite]
        wrong = _Values(expected, actual, index_of(sample_finite, sample.shape))
    if said := _constant_value(wrong) or _offset_or_factor(wrong):
        return said
    if said := _from_elsewhere(wrong, expected, actual):
        return said
    every = _Values(expected, actual, index_of(sample.every, sample.shape))
    return (
        _rounded_result(every, actual.dtype)
        or _shared_along_lines(sample, expected, actual)
        or _growing(sample, every)
        or products()
        or _low_precision(sample, every, actual.dtype)
    )


def _not_finite(wrong: _Values) -> str:
    nan = wrong.found.isnan() & ~wrong.wanted.isnan()
    infinite = wrong.found.isinf() & wrong.wanted.isfinite()
    missing = wrong.found.isfinite() & ~wrong.wanted.isfinite()
    for mask, named in (
        (nan, "NaN where a number is expected: inf - inf, 0 / 0, or memory that was not written"),
        (infinite, "infinite where a finite number is expected: an overflow or a division by zero"),
        (missing, "finite where an infinity or NaN is expected"),
    ):
        share = float(mask.double().mean())
        if share >= 0.05:
            how_many = "All" if share == 1 else "Nearly all" if share >= _NEARLY_ALL else f"{share:.0%}"
            return f"{how_many} of the wrong elements are {named}."
    return ""


def _constant_value(wrong: _Values) -> str:
    found, wanted = wrong.found, wrong.wanted
    if wrong.hold(found == 0):
        return "The values found there are all 0."
    middle = float(found.median()) if len(found) else 0.0
    if wrong.hold(found == middle) and len(wanted.unique()) >= _FEW:
        return f"The values found there are all {middle:.6g}."
    if wrong.hold(wanted == 0) and len(found.unique()) >= _FEW:
        sign = "negative " * wrong.hold(found < 0) or "positive " * wrong.hold(found > 0)
        return f"All of them should be 0 and are {sign}numbers: a mask or an activation is missing."
    return ""


def _offset_or_factor(wrong: _Values) -> str:
    found, wanted, error = wrong.found, wrong.wanted, wrong.error
    if len(found) < _FEW or len(wanted.unique()) < _FEW:
        return ""
    offset = float(error.median())
    room = wrong.tolerance + wrong.rounding
    if offset and wrong.hold((error - offset).abs() <= room.clamp(max=_CLOSE * abs(offset))):
        return f"Every wrong element is too {'large' if offset > 0 else 'small'} by {abs(offset):.6g}."
    scaled = wanted != 0
    factor = float((found[scaled] / wanted[scaled]).median()) if bool(scaled.any()) else 0.0
    if factor in (0.0, 1.0) or not math.isfinite(factor):
        return ""
    room = torch.minimum(max(1.0, abs(factor)) * wrong.tolerance + wrong.rounding, _CLOSE * error.abs())
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


def _from_elsewhere(wrong: _Values, expected: Expected, actual: torch.Tensor) -> str:
    """Recognize values that belong at other indices, by a rule."""
    if len(wrong.found) < _FEW:
        return ""
    chosen = (
        torch.randperm(len(wrong.found), generator=torch.Generator().manual_seed(0))[:_MOVED].sort().values
    )
    index, found = tuple(each[chosen] for each in wrong.index), wrong.found[chosen]
    for moved, there, named in _rules(index, tuple(actual.shape)):
        if int(there.sum()) < max(_FEW, len(found) // 2):
            continue
        home = _Values(expected, actual, tuple(each[there] for each in moved))
        same = (found[there] - home.wanted).abs() <= home.tolerance
        if wrong.hold(same) and len(found[there][same].unique()) >= _FEW:
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


def _rounded_result(every: _Values, kind: torch.dtype) -> str:
    """Recognize results that were stored in a lower precision, by values that are all numbers of it."""
    if kind not in _MANTISSAS:
        return ""
    there = every.finite & (every.found != 0) & (every.wanted != 0)
    found, wanted = every.found[there], every.wanted[there]
    if len(found.unique()) < 4 * _FEW or float((found / wanted - 1).abs().median()) > 2**-6:
        return ""
    for lower, name in _FORMATS.items():
        if torch.finfo(lower).bits >= torch.finfo(kind).bits and lower is not torch.bfloat16:
            continue

        def stored(values: torch.Tensor, lower: torch.dtype = lower) -> float:
            return float((values.to(lower).double() == values).double().mean())

        if stored(found) >= 0.999 and stored(wanted.to(kind).double()) < 0.5:
            return f"Every value found is a {name} number: the result was rounded to {name}."
    return ""


def _shared_along_lines(sample: WrongSample, expected: Expected, actual: torch.Tensor) -> str:
    """Recognize errors that are the same all along a dimension, but not from one such line to the next."""
    along = [d for d, size in enumerate(sample.shape) if size >= _FEW // 2]
    found = [(d, _error_of_lines(sample, expected, actual, d)) for d in along]
    constant = [(d, how) for d, how in found if how]
    if not constant or len(constant) == len([size for size in sample.shape if size > 1]):
        return ""
    dimensions = ", ".join(str(d) for d, _ in constant)
    name = f"dimension {dimensions}" if len(constant) == 1 else f"dimensions {dimensions}"
    return (
        f"Along {name} all elements are off by the same {constant[0][1]}, which differs between such lines: "
        "a value that they share (a sum, mean, maximum or scale) is wrong."
    )


def _error_of_lines(sample: WrongSample, expected: Expected, actual: torch.Tensor, d: int) -> str:
    """Return "factor" or "amount" if the errors along dimension `d` are that, for each line; "" if not."""
    size = sample.shape[d]
    bases = index_of(sample.wrong, sample.shape)
    lines = flat_of([*bases[:d], torch.zeros_like(bases[d]), *bases[d + 1 :]], sample.shape).unique()
    lines = lines[:: -(-len(lines) // _LINES)]
    if len(lines) < _FEW // 2:
        return ""
    points = torch.arange(size)[:: -(-size // _POINTS)]
    begins = index_of(lines, sample.shape)
    index = [each.repeat_interleave(len(points)) for each in begins]
    index[d] = points.repeat(len(lines))
    values = _Values(expected, actual, tuple(index))
    if not values.finite.all():
        return ""
    form = len(lines), len(points)
    found, wanted, error = (v.view(form) for v in (values.found, values.wanted, values.error))
    room = values.tolerance.view(form)
    wrong = (error.abs().median(1).values > 2 * room.median(1).values).double().mean()
    varied = (wanted.amax(1) - wanted.amin(1) > 10 * room.amax(1)).double().mean()
    if min(wrong, varied) < _NEARLY_ALL:
        return ""
    factor = (found / wanted).nanmedian(1, keepdim=True).values
    amount = error.median(1, keepdim=True).values
    close = room + _CLOSE * error.abs()
    for name, left, of_lines in (
        ("factor", found - factor * wanted, factor - 1),
        ("amount", error - amount, amount),
    ):
        if float((left.abs() <= close).double().mean()) >= _NEARLY_ALL and float(
            of_lines.std()
        ) > _CLOSE * float(of_lines.abs().median()):
            return name
    return ""


def _growing(sample: WrongSample, every: _Values) -> str:
    """Recognize errors that grow along a dimension, in themselves and relative to what is expected."""
    for d, size in enumerate(sample.shape):
        if size < 2 * _PARTS:
            continue
        part = (every.index[d] * _PARTS).div(size, rounding_mode="floor")
        members = [every.finite & (part == number) for number in range(_PARTS)]
        if min(int(mask.sum()) for mask in members) < 4 * _FEW:
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


def _low_precision(sample: WrongSample, every: _Values, kind: torch.dtype) -> str:
    """Recognize relative errors of the size of a lower precision's, nearly everywhere and of random sign.

    A wrong constant or a coarse approximation has errors of that size, too, but smooth ones: elements of
    nearly the same value, or neighbours, have errors of the same sign.
    """
    there = every.finite & (every.wanted != 0)
    if kind not in _MANTISSAS or sample.count < 0.5 * sample.elements or int(there.sum()) < 16 * _FEW:
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
                f"The median relative error is 2^{exponent:.1f}, with random signs: it looks like {name}, "
                f"for an output of {str(kind).removeprefix('torch.')}."
            )
    return ""


def _disorder(error: torch.Tensor) -> float:
    """Return the share of neighbours whose signs differ; about a half of random ones."""
    return float((error[1:].sign() != error[:-1].sign()).double().mean())
