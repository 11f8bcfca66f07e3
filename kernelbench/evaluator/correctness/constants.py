"""Constant inputs: those that are the same in every draw (ones for a weight, a causal mask, equal lengths).

Such an input says nothing of what it may be, and a kernel that never reads it would pass. So it is varied:
numbers by factors around one, zeros by a little noise, masks by moving or flipping some elements, integers
by moving them about or lowering some, so that indices stay in range and sorted ones sorted.

A task that draws x, and gives it a weight of ones, a causal mask and three sequence lengths of 128:

>>> def draw(seed):
...     x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
...     return [x, torch.ones(4), torch.ones(4, 4).tril().bool(), torch.full((3,), 128)]
>>> constant_inputs(draw(0), draw)
[1, 2, 3]

The first variation of each that the reference can take, and that changes its outputs, is the one that is
used:

>>> _, weight, mask, lengths = draw(0)
>>> factors = next(variations(weight, "real"))(weight, Draws(0))  # a tenth to three tenths off one
>>> bool((((factors - 1).abs() > 0.09) & ((factors - 1).abs() < 0.31)).all())
True
>>> moved = next(variations(mask, "mask"))(mask, Draws(0))  # its columns in another order
>>> sorted(moved.sum(0).tolist()), sorted(mask.sum(0).tolist())
([1, 2, 3, 4], [1, 2, 3, 4])
>>> lowered = next(variations(lengths, "index"))(lengths, Draws(0))  # to half or more; one stays
>>> int(lowered.min()) >= 64, int(lowered.max()), torch.equal(lowered, lengths)
(True, 128, False)
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from kernelwright.kernelbench.evaluator.reference.draws import Draws
from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault

Variation = Callable[[torch.Tensor, Draws], torch.Tensor]
Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]

# All chosen by hand.
SHARE = 0.01  # share of an output that may be infinite or NaN beyond that on the task's own draws
_NOISE = 0.2  # standard deviation, or largest value, of the noise in place of zeros
_MANY, _FEW = 1 / 4, 1 / 256  # shares of a mask's elements that are flipped
_LONG_ROW = 64  # elements of a row from which on each is flipped by itself: never nearly all of them
_TRIES = 3  # draws of a variation until the reference is defined on one
_PARTLY = 1 / 4  # least share of an input's elements that are the same in every draw, such as padding
_FEW_VALUES, _LOOKED_AT = 16, 1 << 16  # distinct integers, fewer of which often coincide; elements examined
_FEW_NUMBERS = 64  # numbers that are computed with as quickly as their results are remembered
_MOST_BETWEEN = 1 << 24  # integers that a variation is chosen from

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def constant_inputs(first: Sequence[torch.Tensor], draw: Callable[[int], list[torch.Tensor]]) -> list[int]:
    """Return the positions of inputs that `draw`, given a number, makes equal to the `first` each time."""
    positions = list(range(len(first)))
    for number in (1, 2):
        if positions:
            other = draw(number)
            positions = [i for i in positions if i < len(other) and _equal(first[i], other[i])]
    return positions


def partly_constant(
    first: Sequence[torch.Tensor], draw: Callable[[int], list[torch.Tensor]]
) -> dict[int, torch.Tensor]:
    """Masks of the elements of integer inputs that are the same in every draw, where many are, but not all.

    Inputs with few values, which often coincide, and sorted ones are left out.
    """
    whole = [
        i
        for i, tensor in enumerate(first)
        if not (tensor.is_floating_point() or tensor.is_complex())
        and tensor.numel() >= _FEW_NUMBERS
        and len(tensor.flatten()[:_LOOKED_AT].unique()) >= _FEW_VALUES
        and not _in_rows(tensor)
    ]
    if not whole:
        return {}
    others = [draw(number) for number in (1, 2)]
    if any(other[i].shape != first[i].shape for other in others for i in whole):
        return {}
    same = {i: (others[0][i] == first[i]) & (others[1][i] == first[i]) for i in whole}
    return {i: alike for i, alike in same.items() if _PARTLY <= float(alike.double().mean()) < 1}


def _in_rows(tensor: torch.Tensor) -> bool:
    """Return True if all rows rise, or all fall."""
    steps = tensor.diff(dim=-1)
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True for a constant of all ones or zeros, or two values, which says nothing of its domain."""
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    low, high = _wide(tensor).aminmax()
    return (bool(low == high) and low.item() in (-1, 0, 1)) or _two_valued(tensor)


def _is_drawn_once(tensor: torch.Tensor) -> bool:
    """Return True for many numbers that were drawn, but always from one seed."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() < _FEW_NUMBERS:
        return False
    values = _real(tensor)
    return not is_plain(values) and bool((values != values.round()).double().mean() > 0.5)


class Constants:
    """Inputs of a task that are the same in every draw, and how each can be varied.

    `positions`: of such inputs. `matter`: those that can be varied, and whether that changes any output.
    `lacking`: those for which no variation is right, since the reference fails on all or gives NaN. `always`:
    those that are varied in the task's own draws, too, as a kernel could otherwise keep what it computed from
    them while it was not timed: many different numbers, and whatever it is where nothing else is drawn.
    """

    def __init__(
        self,
        first: Sequence[torch.Tensor],
        positions: Sequence[int],
        domains: Sequence[str],
        run: Run,
        numbers: Sequence[object] = (),
        partly: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """`numbers`: inputs that are no tensors; one may say how long the longest of some segments is.

        `partly`: see `partly_constant`.
        """
        self._run, self._domains, self._numbers = run, domains, numbers
        self.variations: dict[int, Variation] = {}
        self.lacking: list[int] = []
        self.matter: dict[int, bool] = {}
        partly = partly or {}
        before = run(first) if positions or partly else []
        for position in positions:
            if first[position].numel():
                self._find(first, position, before)
        for position, alike in partly.items():
            refilled = functools.partial(_refilled, alike=alike)
            inputs = list(first)
            inputs[position] = refilled(first[position], Draws(position, device=first[position].device))
            if self._tried(inputs, before) is not None:
                self.variations[position] = refilled
        nothing_drawn = len(positions) == len(first)
        self.always = [p for p in self.variations if nothing_drawn or _is_drawn_once(first[p])]

    def _find(self, first: Sequence[torch.Tensor], position: int, before: Sequence[torch.Tensor]) -> None:
        """Find the first variation that outputs depend on; or one that they do not."""
        draws = Draws(position, device=first[position].device)
        for variation in variations(first[position], self._domains[position]):
            if variation is _in_order and _longest(first[position]) in self._numbers:
                continue
            inputs = list(first)
            inputs[position] = variation(first[position], draws)
            if _equal(inputs[position], first[position]):
                continue
            after = self._tried(inputs, before)
            if after is None:
                continue
            if not all(_equal(a, b) for a, b in zip(before, after, strict=True)):
                self.variations[position], self.matter[position] = variation, True
                return
            self.matter[position] = False
            self.variations.setdefault(position, variation)
        if position not in self.matter:
            self.lacking.append(position)

    def _tried(
        self, inputs: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> list[torch.Tensor] | None:
        """Return the outputs; None where the reference fails, or is less defined than it was `before`."""
        try:
            after = self._run(inputs)
        except TaskFault:
            return None
        undefined = any(_nan_share(a) > _nan_share(b) for a, b in zip(after, before, strict=True))
        if undefined or not defined(after, [not_finite(b) for b in before]):
            return None
        return after

    def vary(self, tensors: Sequence[torch.Tensor], draws: Draws, family: str) -> None:
        """Vary the constants among `tensors`, in place, all or those that this family does not rewrite.

        Where the reference is not defined on what comes of it, the others stay what they are.
        """
        every = family == "varied"
        chosen = [p for p in self.variations if every or self._domains[p] in UNTOUCHED]
        if family == "task":
            chosen = self.always
        if not chosen:
            return
        before = self._run(tensors)
        if self._varied(tensors, chosen, draws, before):
            return
        for position in chosen:  # one of them alone
            if self._varied(tensors, [position], draws, before):
                return

    def _varied(
        self,
        tensors: Sequence[torch.Tensor],
        chosen: Sequence[int],
        draws: Draws,
        before: Sequence[torch.Tensor],
    ) -> bool:
        """Vary the `chosen` ones; leave them as they are, and say so, where that is not right."""
        kept = {position: tensors[position].clone() for position in chosen}
        for _ in range(_TRIES):
            for position, old in kept.items():
                tensors[position].copy_(self.variations[position](old, draws))
            if self._tried(tensors, before) is not None:
                return True
        for position, old in kept.items():
            tensors[position].copy_(old)
        return False

    def notes(self) -> list[str]:
        """Sentences for the user about inputs that could not be varied."""
        return [
            f"input {position} is the same in every draw and could not be varied, "
            "so a candidate may ignore it"
            for position in self.lacking
        ]


UNTOUCHED = ("sign", "mask", "index", "fixed")  # domains that no family rewrites


def defined(outputs: Sequence[torch.Tensor], before: Sequence[float], entirely: bool = False) -> bool:
    """Return True if no output has more infinities and NaNs than `before`, or hardly more."""
    more = 0.0 if entirely else SHARE
    return all(not_finite(output) <= share + more for output, share in zip(outputs, before, strict=True))


def not_finite(tensor: torch.Tensor) -> float:
    """Return the share of the elements that are infinite or NaN."""
    tensor = _real(tensor)
    if not tensor.is_floating_point() or not tensor.numel() or bool(tensor.sum().isfinite()):
        return 0.0
    return float((~tensor.isfinite()).double().mean())


def _nan_share(tensor: torch.Tensor) -> float:
    tensor = _real(tensor)
    if not tensor.is_floating_point() or not tensor.numel() or bool(tensor.sum().isfinite()):
        return 0.0
    return float(tensor.isnan().double().mean())


def variations(tensor: torch.Tensor, domain: str) -> Iterator[Variation]:
    """Ways to make another value of a constant, the one that is most likely to be right and to tell first."""
    if tensor.is_complex():
        yield _scaled if bool((tensor != 0).any()) else _noise
        return
    wide = _wide(tensor)
    low, high = (value.item() for value in wide.aminmax())
    number = tensor.is_floating_point()
    if low != high:
        yield from _of_several_values(tensor, domain)
    elif tensor.dtype is torch.bool or domain == "mask" or (not number and low == 1):
        yield from _flips(low, 1 - low)
    elif domain == "sign":
        yield from _flips(low, -low)
    elif number and low == 0:
        yield from (_noise, _positive_noise)
        yield from _flips(0, 1)
    elif number:
        yield functools.partial(_scaled, domain=domain)
        if low == 1:
            yield from _flips(1, 0)
    elif low > 1:
        yield from (_lowered, _lowered_in_order)
    elif low == 0 and tensor.device.type == "cpu":  # an index out of range is the end of a GPU's process
        yield from _flips(0, 1)


def _of_several_values(tensor: torch.Tensor, domain: str) -> Iterator[Variation]:
    number = tensor.is_floating_point()
    if not number and tensor.dtype is not torch.bool and _sorted(tensor) is not None:
        yield _in_order
    elif number and not _two_valued(tensor):
        scaled = functools.partial(_scaled, domain=domain)
        if domain == "sorted":
            yield scaled
            return
        whole = bool((_wide(tensor) == _wide(tensor).round()).all())
        yield from (_permuted, scaled) if whole else (scaled, _permuted)
    elif _two_valued(tensor):
        yield functools.partial(_permuted, last_first=True)
        if not _one_hot(tensor):
            low, high = (value.item() for value in _wide(tensor).aminmax())
            yield from _flips(low, high)
    else:
        yield _permuted


def _flips(one: float, other: float) -> Iterator[Variation]:
    for share in (_MANY, _FEW, 0.0):
        yield functools.partial(_flipped, one=one, other=other, share=share)


def _flipped(tensor: torch.Tensor, draws: Draws, one: float, other: float, share: float) -> torch.Tensor:
    """Give some elements, of each row at most a part, the other of two values; at least one."""
    wide = _wide(tensor)
    columns = tensor.shape[-1] if tensor.dim() and tensor.shape[-1] > 1 else tensor.numel()
    rows = tensor.numel() // columns
    chosen = torch.zeros(rows, columns, dtype=torch.bool, device=tensor.device)
    if share and columns >= _LONG_ROW:
        chosen |= draws.uniform(rows, columns) < share
    elif share * columns >= 0.5:
        order = draws.uniform(rows, columns).argsort(-1)
        chosen.scatter_(-1, order[:, : max(1, int(share * columns))], True)
    elif share:
        some = draws.uniform(rows) < share * columns
        chosen[some, draws.below(columns, rows).to(tensor.device)[some]] = True
    if not bool(chosen.any()):
        chosen.view(-1)[int(draws.below(tensor.numel(), 1))] = True
    swapped = torch.full_like(wide, one).masked_fill(wide == one, other)
    return torch.where(chosen.view(tensor.shape), swapped, wide).to(tensor.dtype)


def _scaled(tensor: torch.Tensor, draws: Draws, domain: str = "real") -> torch.Tensor:
    """Each element by a factor of its own, a tenth to three tenths off one."""
    lower = draws.uniform(*tensor.shape) < (1.0 if domain == "unit" else 0.5)
    factors = 1 + (0.1 + 0.2 * draws.uniform(*tensor.shape)) * torch.where(lower, -1.0, 1.0)
    if domain == "symmetric":
        factors = (factors + factors.mT) / 2
    wide = tensor if tensor.is_complex() else _wide(tensor)
    made = torch.where(wide == 0, wide, wide * factors)
    if domain == "probability":
        made = made / made.sum(-1, keepdim=True)
    if domain == "sorted":
        made = made.sort(-1).values
    return made.to(tensor.dtype)


def _noise(tensor: torch.Tensor, draws: Draws) -> torch.Tensor:
    return (_NOISE * draws.normal(*tensor.shape)).to(tensor.dtype)


def _positive_noise(tensor: torch.Tensor, draws: Draws) -> torch.Tensor:
    return (_NOISE * draws.uniform(*tensor.shape)).to(tensor.dtype)


def _permuted(tensor: torch.Tensor, draws: Draws, last_first: bool = False) -> torch.Tensor:
    """Permute the parts along one dimension, the longest or the last; each stays as it is."""
    dims = sorted(range(tensor.dim()), key=lambda dim: (tensor.shape[dim], dim), reverse=True)
    if last_first and dims:
        dims.insert(0, dims.pop(dims.index(tensor.dim() - 1)))
    bits = tensor.view(_BITS.get(tensor.element_size(), tensor.dtype))
    for dim in dims:
        order = draws.uniform(tensor.shape[dim]).argsort()
        for made in (bits.index_select(dim, order), bits.roll(1, dim)):
            if not torch.equal(made, bits):
                return made.view(tensor.dtype)
    return tensor


def _lowered(tensor: torch.Tensor, draws: Draws) -> torch.Tensor:
    """About half of equal integers, lowered to half or more of what they are; one stays."""
    size, value = tensor.numel(), int(_wide(tensor).max())
    least = max(1, value // 2)
    lower = least + draws.below(min(value - least, _MOST_BETWEEN), size)
    lowered = draws.uniform(size) < 0.5
    lowered[int(draws.below(size, 1))] = True
    if size > 1 and bool(lowered.all()):
        lowered[int(draws.below(size, 1))] = False
    return torch.where(lowered, lower, torch.full_like(lower, value)).view(tensor.shape).to(tensor.dtype)


def _lowered_in_order(tensor: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Lower equal integers, the largest first: some take lengths only so."""
    made = _lowered(tensor, draws)
    return made.view(-1).sort(descending=True).values.view(tensor.shape)


def _sorted(tensor: torch.Tensor) -> bool | None:
    """Return True if integers of one row rise, False if they fall; None where they do neither, or by ones."""
    if tensor.numel() < 3 or max(tensor.shape) != tensor.numel():
        return None
    steps = tensor.reshape(-1).long().diff()
    if bool((steps >= 0).all()) or bool((steps <= 0).all()):
        return None if bool((steps.abs() == 1).all()) else bool((steps >= 0).all())
    return None


def _refilled(tensor: torch.Tensor, draws: Draws, alike: torch.Tensor) -> torch.Tensor:
    """Replace elements that are the same in every draw by values of the others."""
    drawn, made = tensor[~alike], tensor.clone()
    made[alike] = drawn[draws.below(drawn.numel(), int(alike.sum())).to(drawn.device)]
    return made


def _longest(tensor: torch.Tensor) -> int:
    """Return the largest step between integers in order."""
    return int(tensor.reshape(-1).long().diff().abs().max())


def _in_order(tensor: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Other integers in the same order, with the same ends; where some repeat, others repeat instead."""
    rising = bool(_sorted(tensor))
    old = tensor.reshape(-1).long()
    values, size = old.unique(), old.numel()
    if len(values) == size:
        between = int(values[-1] - values[0]) - 1
        if between > _MOST_BETWEEN:
            return tensor
        inner = draws.uniform(between).argsort()[: size - 2].to(old.device) + values[0] + 1
        made = torch.cat([values[:1], inner.sort().values, values[-1:]])
    else:
        begins = torch.zeros(size, dtype=torch.long, device=old.device)
        begins[1 + draws.uniform(size - 1).argsort()[: len(values) - 1].to(old.device)] = 1
        made = values[begins.cumsum(0)]
    return (made if rising else made.flip(0)).view(tensor.shape).to(tensor.dtype)


def _two_valued(tensor: torch.Tensor) -> bool:
    if tensor.dtype is torch.bool:
        return True
    wide = _wide(tensor)
    low, high = wide.aminmax()
    two = bool(low != high) and bool(((wide == low) | (wide == high)).all())
    return two and (tensor.is_floating_point() or (int(low), int(high)) == (0, 1))


def _one_hot(tensor: torch.Tensor) -> bool:
    rows = (_wide(tensor) == _wide(tensor).max()).sum(-1)
    return tensor.dim() > 0 and tensor.shape[-1] > 2 and bool((rows == 1).all())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Tensor in a dtype that torch computes with: not all operators take each narrow dtype."""
    if tensor.is_floating_point():
        return tensor.float() if is_eight_bit_float(tensor.dtype) else tensor
    return tensor.long()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if is_eight_bit_float(tensor.dtype) else tensor


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit: NaN equals NaN."""
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    a, b = _real(a), _real(b)
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
