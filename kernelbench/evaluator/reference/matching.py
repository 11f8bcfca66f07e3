"""Matching of a candidate's weights to the reference's, where names do not say which is which.

Both constructors draw from one seed, so a weight is known by its values: the reference's own, in another
order of dimensions, several of them joined along a dimension, or a part of one, each perhaps cast to another
floating dtype. Weights that are all ones, or zeros, go by the order of definition:

    reference   in_proj.bias [24], out_proj.bias [8]
    candidate   q.bias [8], k.bias [8], v.bias [8], o.bias [8]
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float

Source = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
_MOST_DIMS = 4  # whose orders are all tried


class Matching:
    """`drawn`: the reference's weights as constructed; `used`: names of those that were found."""

    def __init__(self, drawn: Mapping[str, torch.Tensor]) -> None:
        self._drawn = {name: comparable(value) for name, value in drawn.items() if value.numel()}
        self.used: set[str] = set()
        self._parts: dict[str, list[tuple[int, int, int]]] = {}  # of those split: dimension, start, length
        self._names: list[str] = []  # of those that are looked through, and whether
        self._again = False  # those may be taken that were found before

    def sources(
        self, wanted: Mapping[str, torch.Tensor], among: Collection[str], again: bool = False
    ) -> dict[str, Source]:
        """Return sources of the candidate's weights in the reference's, where values determine them.

        Each is taken once, for others may have the same values; with `again`, more often.
        """
        self._names, self._again = [name for name in self._drawn if name in among], again
        wanted = {name: comparable(value) for name, value in wanted.items() if value.numel()}
        found: dict[str, Source] = {}
        for name, value in wanted.items():
            if not is_constant(value) and (source := self._source(value)) is not None:
                found[name] = source
        found |= self._in_line({name: value for name, value in wanted.items() if is_constant(value)})
        for name, value in wanted.items():
            if name not in found and (source := self._source(value)) is not None:
                found[name] = source
        return found

    def _in_line(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, Source]:
        """Match constants, if both sides have as many of a value, by the order of their definition."""
        found: dict[str, Source] = {}
        values = {name: self._drawn[name] for name in self._names if name not in self.used}
        free = {name: value for name, value in values.items() if is_constant(value)}
        for kind in dict.fromkeys(map(_kind, wanted.values())):
            ours = {name: value for name, value in wanted.items() if _kind(value) == kind}
            theirs = [name for name, value in free.items() if _kind(value) == kind]
            ends = list(itertools.accumulate(value.numel() for value in ours.values()))
            if ends[-1] != sum(free[name].numel() for name in theirs):
                continue
            self.used.update(theirs)
            for (name, value), end in zip(ours.items(), ends, strict=True):
                begin = end - value.numel()
                found[name] = functools.partial(_cut, names=theirs, begin=begin, end=end, shape=value.shape)
        return found

    def _source(self, wanted: torch.Tensor) -> Source | None:
        """Source of a weight with `wanted`'s values in the reference's; None where they are not there."""
        for find in (self._whole, self._joined, self._part):
            if (found := find(wanted)) is not None:
                return found
        return None

    def _free(self) -> list[str]:
        """Names that no source uses yet; after them the others, if they may be taken again."""
        free = [name for name in self._names if name not in self.used]
        return free + [name for name in self._names if name in self.used] * self._again

    def _whole(self, wanted: torch.Tensor) -> Source | None:
        for name in self._free():
            value = self._drawn[name]
            for order in _orders(value, wanted.numel()):
                if _equal(value.permute(order).reshape(wanted.shape), wanted):
                    self.used.add(name)
                    return lambda state: state[name].permute(order).reshape(wanted.shape)
        return None

    def _joined(self, wanted: torch.Tensor) -> Source | None:
        for dim in range(wanted.dim()):
            moved = wanted.movedim(dim, 0)
            pieces = self._pieces(moved.reshape(-1))
            if pieces is not None:
                self.used.update(name for name, _ in pieces)
                return functools.partial(_join, pieces=pieces, shape=moved.shape, dim=dim)
        return None

    def _pieces(self, flat: torch.Tensor) -> list[tuple[str, tuple[int, ...]]] | None:
        """Weights that give `flat` one after the other, each with the order of its dimensions."""
        found: list[tuple[str, tuple[int, ...]]] = []
        start = 0
        while start < flat.numel():
            rest = flat[start:]
            taken = {name for name, _ in found}
            piece = next(
                (
                    (name, order)
                    for name in self._free()
                    if name not in taken
                    for order in _orders(self._drawn[name], rest.numel(), shorter=True)
                    if _equal(self._drawn[name].permute(order).reshape(-1), rest[: self._drawn[name].numel()])
                ),
                None,
            )
            if piece is None:
                return None
            found.append(piece)
            start += self._drawn[piece[0]].numel()
        return found

    def _part(self, wanted: torch.Tensor) -> Source | None:
        parted = [name for name in self._parts if name in self._names]
        for name in dict.fromkeys((*parted, *self._free())):
            value = self._drawn[name]
            for dim, start, length in self._places(name, value, wanted):
                if _equal(value.narrow(dim, start, length), wanted):
                    self.used.add(name)
                    self._parts.setdefault(name, []).append((dim, start, length))
                    return lambda state: state[name].narrow(dim, start, length)
        return None

    def _places(self, name: str, value: torch.Tensor, wanted: torch.Tensor) -> Iterator[tuple[int, int, int]]:
        """Along which dimension, from where and how far `value` may hold `wanted`."""
        if value.dim() != wanted.dim() or not _comparable_dtypes(value, wanted):
            return
        for dim in range(value.dim()):
            shapes = [list(value.shape), list(wanted.shape)]
            length = shapes[1].pop(dim)
            if shapes[0].pop(dim) <= length or shapes[0] != shapes[1]:
                continue
            firsts = value.movedim(dim, 0)[(slice(None), *(0,) * (value.dim() - 1))].to(wanted.dtype)
            starts = (firsts == wanted.reshape(-1)[0]).nonzero().flatten().tolist()
            for start in sorted(starts, key=lambda start: self._taken(name, dim, start, length)):
                if start + length > value.shape[dim]:
                    continue
                if self._again or not self._taken(name, dim, start, length):
                    yield dim, start, length

    def _taken(self, name: str, dim: int, start: int, length: int) -> bool:
        """Return True if a part of a weight shares elements with one that is used already."""
        return any(
            other != dim or (begin < start + length and start < begin + size)
            for other, begin, size in self._parts.get(name, ())
        )


def order_of(drawn: torch.Tensor, wanted: torch.Tensor) -> tuple[int, ...] | None:
    """Return the order of dimensions in which `drawn` has the values of `wanted`, of the same shape."""
    drawn, wanted = comparable(drawn), comparable(wanted)
    orders = (o for o in _orders(drawn, wanted.numel()) if _equal(drawn.permute(o), wanted))
    return next(orders, None)


def comparable(value: torch.Tensor) -> torch.Tensor:
    """Tensor on the CPU and in a dtype whose values can be compared and joined."""
    value = value.detach().cpu()
    return value.float() if is_eight_bit_float(value.dtype) else value


def is_constant(tensor: torch.Tensor) -> bool:
    """Return True if all elements are the same, as in a new norm."""
    return bool((tensor == tensor.reshape(-1)[0]).all())


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, complex, bool]:
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return dtype, tensor.reshape(-1)[0].item(), bool(tensor.dim())


def _cut(
    state: Mapping[str, torch.Tensor], names: Sequence[str], begin: int, end: int, shape: torch.Size
) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1) for name in names])[begin:end].reshape(shape)


def _join(
    state: Mapping[str, torch.Tensor],
    pieces: Sequence[tuple[str, tuple[int, ...]]],
    shape: torch.Size,
    dim: int,
) -> torch.Tensor:
    flat = torch.cat([state[name].permute(order).reshape(-1) for name, order in pieces])
    return flat.reshape(shape).movedim(0, dim)


def _orders(value: torch.Tensor, numel: int, shorter: bool = False) -> Iterator[tuple[int, ...]]:
    """Orders of a weight's dimensions, where it has `numel` elements, or fewer where it may be `shorter`."""
    if value.numel() != numel and not (shorter and value.numel() < numel):
        return
    dims = tuple(range(value.dim()))
    yield from itertools.permutations(dims) if len(dims) <= _MOST_DIMS else (dims,)


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return True if `left`, cast to the dtype of `right`, has its values; the first one usually decides."""
    if left.shape != right.shape or not _comparable_dtypes(left, right):
        return False
    zero = (0,) * left.dim()
    return bool(left[zero].to(right.dtype) == right[zero]) and bool((left.to(right.dtype) == right).all())


def _comparable_dtypes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype or (left.is_floating_point() and right.is_floating_point())
