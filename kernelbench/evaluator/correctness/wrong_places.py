"""Places of wrong elements: a tail, a block, every n-th index, whole rows; nothing where they are scattered.

Of a 4 x 100 output the last three columns were not written:

>>> within = torch.ones(4).bool(), torch.arange(100) > 96
>>> flat = torch.arange(400)[torch.arange(400) % 100 > 96]
>>> where(WrongSample((4, 100), 12, within, flat, flat, 97, 399, 0))
'All wrong elements are at indices 97 to 99 of dimension 1 (the last 3 of 100).'
"""

import math

import torch

from kernelwright.kernelbench.evaluator.correctness.wrong_sample import WrongSample

# Chosen by hand.
_FEW = 8  # wrong elements, fewer of which are in no place but the very end
_FULL = 0.5  # least share of the elements of a place that are wrong: some are right by chance
_ALL = 0.9  # share of the output from which a place is all of it
_LISTED = 4  # indices that are named one by one
_LONGEST_STRIDE = 64
_PERIODS = 4  # least number of times that a regular pattern repeats
_CERTAIN = 20  # wrong elements in a sample for each residue, from which one is not missed by chance


def where(sample: WrongSample) -> str:
    """Return a sentence on where the wrong elements of an output are, or ""."""
    place = _run(sample) or _box(sample) or _residues(sample)
    return f"All wrong elements are {place}." if place else ""


def _run(sample: WrongSample) -> str:
    """Describe wrong elements that are neighbours in the flattened output, but no whole rows."""
    span, end = sample.last - sample.first + 1, sample.elements
    row = math.prod(sample.shape[1:])
    whole_rows = sample.first % row == 0 and span % row == 0 and len(sample.shape) > 1
    enough = sample.count >= _FEW or (sample.last == end - 1 and sample.count == span)
    if whole_rows or not enough or sample.count < _FULL * span or span > _ALL * end:
        return ""
    inside = len(sample.shape) > 1 and sample.first // row == sample.last // row and end > row
    if inside and sample.last != end - 1:
        return ""  # part of one row, which the box says more clearly
    what = "of the output" if len(sample.shape) == 1 else "of the flattened output"
    if sample.last == end - 1:
        return f"the last {span} elements {what}" if span > 1 else f"the last element {what}"
    if sample.first == 0:
        return f"the first {span} elements {what}"
    return f"elements {sample.first} to {sample.last} {what}"


def _box(sample: WrongSample) -> str:
    """Describe wrong elements that are all those of some indices of one or more dimensions."""
    sizes = [int(mask.sum()) for mask in sample.within]
    box = math.prod(sizes)
    if sample.count < _FEW or sample.count < _FULL * box or box > _ALL * sample.elements:
        return ""
    parts = []
    for d, (mask, size) in enumerate(zip(sample.within, sizes, strict=True)):
        if size == len(mask):
            continue
        place = _regular(mask.nonzero().squeeze(1), len(mask))
        if not place:
            if box // size < _FEW:
                return ""  # these are the elements themselves
            place = _listed(mask.nonzero().squeeze(1), len(mask))
        parts.append(place.format(dimension=f"dimension {d}"))
    return "at " + " and ".join(parts)


def _regular(indices: torch.Tensor, size: int) -> str:
    """Describe indices that are a range, or come at regular distances; "" for others."""
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)
    if last - first + 1 == count:
        named = f"index {first}" if count == 1 else f"indices {first} to {last}"
        several = f" {count}" * (count > 1)
        if last == size - 1:
            return f"{named} of {{dimension}} (the last{several} of {size})"
        if first == 0:
            return f"{named} of {{dimension}} (the first{several} of {size})"
        return f"{named} of {{dimension}} ({count} of {size})"
    for stride in range(2, min(_LONGEST_STRIDE, size // _PERIODS) + 1):
        residues = (indices % stride).unique()
        if len(residues) < stride:
            there = sum(len(range(int(residue), size, stride)) for residue in residues)
            if there == count and (said := _by_residue(residues, stride)):
                return f"indices i of {{dimension}} with {said}"
    return ""


def _listed(indices: torch.Tensor, size: int) -> str:
    named = ", ".join(str(int(index)) for index in indices[:_LISTED])
    if len(indices) <= _LISTED:
        return f"indices {named} of {{dimension}} (of {size})"
    return f"{len(indices)} of the {size} indices of {{dimension}} ({named}, …)"


def _residues(sample: WrongSample) -> str:
    """Describe wrong elements that come at regular distances in the flattened output."""
    for stride in range(2, _LONGEST_STRIDE + 1):
        if len(sample.wrong) < _CERTAIN * stride or sample.elements < _PERIODS * stride:
            return ""
        residues = (sample.wrong % stride).unique()
        share = len(residues) / stride
        if share <= _ALL and sample.count >= _FULL * share * sample.elements:
            said = _by_residue(residues, stride)
            return f"at flattened indices i with {said}" if said else ""
    return ""


def _by_residue(residues: torch.Tensor, stride: int) -> str:
    known = [int(residue) for residue in residues]
    if len(known) == 1:
        return f"i % {stride} == {known[0]} (every {_ordinal(stride)})"
    if known[-1] - known[0] + 1 == len(known) > 2:
        return f"i % {stride} from {known[0]} to {known[-1]}"
    listed = " or ".join(map(str, known))
    return f"i % {stride} == {listed}" if len(known) <= _LISTED else ""


def _ordinal(number: int) -> str:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"
