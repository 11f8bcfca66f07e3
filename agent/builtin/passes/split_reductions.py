"""Long reductions in two steps, so that a GPU has enough blocks: of parts of rows, then of their results.

x.sum(1) with x of [64, 131072] has 64 rows, and a block for each would leave half of an H100's 132
multiprocessors without work. Its rows are cut into 32 parts of 4096 elements, which are 2048 shorter rows:

    %sum_1_parts = reduce sum(%x[64, 32×4096, 4096×1], axes [2]) : float32[64, 32]
    %sum_1 = reduce sum(%sum_1_parts[64, 32], axes [1]) : float32[64]

Both are reductions like any other, and become a kernel each. The parts are always taken together in the same
order, so that results are reproducible. Of several axes the outermost are cut: the sums over images, height
and width in a batch norm are of each image first.

A second reduction that needs the first one's result, as a softmax's sum of exponentials needs the maximum,
would read all elements again. Instead each part has a sum of its own, below its own maximum, which is
corrected (`ir/corrections.py`) for the row's. With m and s those of parts:

    maximum      M = max m
    exponentials S = sum of s e^(m - M)

    mean         A = the mean of the parts' means a, which are of n elements each
    squares      Q = sum of q + n (a - A)^2      (Chan, Golub and LeVeque 1979)

An argmax is the place in a part that has the row's maximum, and where that part begins.

Products of few rows and columns are cut along their depth (split-K), where their tiles are fewer than there
are multiprocessors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from kernelwright.agent.builtin.ir.corrections import CorrectedSum, correction
from kernelwright.agent.builtin.ir.ops import POINTWISE, Settings, promoted
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Operand,
    Program,
    Reduce,
    Statement,
    View,
    contiguous,
    views_of,
)
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS

# Chosen by hand, not measured. Elements, of 4 bytes say:
_HELD = 1 << 15  # of a row that a block can hold in its registers, and that it has in a few µs
_PART = 1 << 14  # of a part that is read twice: what blocks hold in either language by default
_LEAST = 1 << 12  # that a part has, or its block has of it and its neighbours: 8 for each of 512 threads
_BESIDE = 32  # columns side by side that a block works on: a line of memory
_TILE = 64  # rows and columns of a tile of a product
_BLOCKS_OF_TILE = 8  # blocks of a reduction for which a tile's counts: it has more to do, and more registers
_LEAST_DEPTH = 512  # of a part of a product


@dataclass(frozen=True)
class RowCut:
    """Cut of rows into parts: the operand's axis `axis` is `count` parts, and those before it are."""

    dims: tuple[int, ...]  # of the reduction
    shape: tuple[int, ...]  # of the operand, with the axis of the parts
    axis: int
    count: int

    def view(self, view: View) -> View:
        """Return a view of the operand's shape in that with parts."""
        stride, axis = view.strides[self.axis], self.axis
        strides = (
            *view.strides[:axis],
            stride * self.shape[axis + 1],
            stride,
            *view.strides[axis + 1 :],
        )
        return replace(view, shape=self.shape, strides=strides)

    @property
    def inside(self) -> tuple[int, ...]:
        """Axes of `shape` that lie inside a part."""
        return tuple(dim + 1 for dim in self.dims if dim >= self.axis)

    @property
    def outside(self) -> tuple[int, ...]:
        """Axes of `shape` that count parts."""
        return tuple(dim for dim in self.dims if dim <= self.axis)

    @property
    def parts_shape(self) -> tuple[int, ...]:
        return tuple(size for axis, size in enumerate(self.shape) if axis not in self.inside)

    @property
    def parts_dims(self) -> tuple[int, ...]:
        """Axes of `parts_shape` that count parts."""
        left = [axis for axis in range(len(self.shape)) if axis not in self.inside]
        return tuple(left.index(axis) for axis in self.outside)

    @property
    def parts(self) -> int:
        return math.prod(self.shape[axis] for axis in self.outside)

    @property
    def length(self) -> int:
        """Elements of a part."""
        return math.prod(self.shape[axis] for axis in self.inside)


def split_reductions(program: Program, blocks: int) -> Program:
    """Cut long reductions into parts where there are fewer blocks of work than `blocks`."""
    if not blocks:
        return program
    splitting = _Splitting(program.copy(), blocks)
    splitting.run()
    return splitting.program if splitting.cuts else program


class _Splitting:
    def __init__(self, program: Program, blocks: int) -> None:
        self.program = program
        self.blocks = blocks
        self.by_name: dict[str, Statement] = {s.name: s for s in program.statements}
        self.found: list[Statement] = []
        self.after: dict[str, tuple[Reduce, CorrectedSum]] = {}  # second reductions, with their first
        self.places: dict[str, tuple[Reduce, Compute]] = {}  # first indices, with the extreme they are of
        self.cuts: dict[str, RowCut] = {}
        self.results: dict[str, View] = {}  # of the parts, by the reduction

    def run(self) -> None:
        reductions = [s for s in self.program.statements if isinstance(s, Reduce)]
        for first, second in permutations(reductions, 2):
            if (first.operand.shape, first.dims) == (second.operand.shape, second.dims):
                self.relate(first, second)
        reductions = [s for s in reductions if self.can_be_cut(s)]
        held = {(first.operand.shape, first.dims) for first, _ in self.after.values()}
        for s in reductions:
            if self.program.roles.get(s.operand.base) == "product" and (tiles := self.tiles(s)):
                cut = _cut_of_product(s, tiles, self.blocks // _BLOCKS_OF_TILE)
            elif s.name in self.after or s.name in self.places:  # the same parts
                cut = self.cuts.get((self.after.get(s.name) or self.places[s.name])[0].name)
            else:
                cut = cut_of_rows(s, self.blocks, (s.operand.shape, s.dims) in held)
            if cut is not None:
                self.cuts[s.name] = cut
        for statement in self.program.statements:
            if isinstance(statement, Reduce) and statement.name in self.cuts:
                self.split(statement, self.cuts[statement.name])
            else:
                self.found.append(statement)
        self.program.statements = self.found

    def relate(self, first: Reduce, second: Reduce) -> None:
        """Note how the second reduction depends on the first, if it can be corrected."""
        found = correction(first, second, self.by_name, _length(first))
        if found is not None:
            self.after[second.name] = first, found
        hit = self.by_name.get(second.operand.base)
        if second.op != "first" or not isinstance(hit, Compute) or hit.op != "position":
            return
        value, extreme = hit.operands
        if value == first.operand and isinstance(extreme, View) and extreme.base == first.name:
            self.places[second.name] = first, hit

    def can_be_cut(self, statement: Reduce) -> bool:
        """Return True if parts of the rows can be reduced apart from each other."""
        if statement.op == "pick" or statement.operand.clips or math.prod(statement.shape) == 1:
            return False
        if statement.name in self.places:
            return True
        whole = statement.operand.numel
        return not any(
            isinstance(s, Compute)
            and ((math.prod(s.shape) == whole and s.by_place) or any(v.clips for v in views_of(s)))
            for s in self.computed_from(statement)
        )

    def tiles(self, statement: Reduce) -> int:
        """Return the tiles of a product of matrices; 0 if it is one with vectors."""
        product = self.by_name.get(statement.operand.base)
        read = [o for o in product.operands if isinstance(o, View)] if isinstance(product, Compute) else []
        if len(read) != 2 or len(statement.dims) != 1:
            return 0
        sizes = {(True, True): 1, (True, False): 1, (False, True): 1, (False, False): 1}
        for axis, size in enumerate(statement.operand.shape):
            if axis not in statement.dims:
                sizes[bool(read[0].strides[axis]), bool(read[1].strides[axis])] *= size
        down, along = sizes[True, False], sizes[False, True]
        return 0 if min(down, along) == 1 else sizes[True, True] * -(-down // _TILE) * -(-along // _TILE)

    def computed_from(self, statement: Statement) -> Iterator[Statement]:
        """Yield the pointwise statements that an operand is computed by, all the way back."""
        todo, seen = [view.base for view in views_of(statement)], set()  # type: ignore[arg-type]
        while todo:
            name = todo.pop()
            producer = self.by_name.get(name)
            if name in seen or not isinstance(producer, Compute):
                continue
            seen.add(name)
            yield producer
            todo += [view.base for view in views_of(producer)]

    # Statements, one at a time.

    def split(self, s: Reduce, cut: RowCut) -> None:
        if s.name in self.places:
            operand = self.place(s, cut, *self.places[s.name])
        elif s.name in self.after:
            first, how = self.after[s.name]
            corrected = self.exponentials if how.kind == "exponentials" else self.squares
            operand = corrected(s, cut, first, how)
        else:
            operand = self.reduce(s, cut, s.operand)
        self.found.append(replace(s, operand=operand, dims=cut.parts_dims))

    def reduce(self, s: Reduce, cut: RowCut, operand: View) -> View:
        """Reduce parts of an operand; return what each reduces to."""
        dtype = s.dtype
        if dtype in SMALL_FLOATS and s.op in ("sum", "prod"):
            dtype = "float32"  # parts are not rounded
        name = self.program.fresh(f"{s.name}_parts")
        view = operand if operand.shape == cut.shape else cut.view(operand)
        self.program.define(name, cut.parts_shape, dtype)
        self.found.append(Reduce(name, s.op, view, cut.inside, cut.parts_shape, dtype))
        self.results[s.name] = View(name, cut.parts_shape, contiguous(cut.parts_shape))
        if s.name in self.program.roles:
            self.program.roles[name] = self.program.roles[s.name]
        return self.results[s.name]

    def exponentials(self, s: Reduce, cut: RowCut, first: Reduce, how: CorrectedSum) -> View:
        """Sum exponentials below the maxima of parts; where that is -inf, below zero: they are zero."""
        summed = self.by_name[s.operand.base]
        below = self.by_name[summed.operands[0].base]  # type: ignore[union-attr]
        assert isinstance(summed, Compute) and isinstance(below, Compute)
        shape, dtype, largest = cut.parts_shape, s.dtype, self.results[first.name]
        none = self.compute("eq", (largest, Constant(-math.inf)), shape, "bool", f"{first.name}_none")
        level = self.compute(
            "where", (none, Constant(0.0), largest), shape, dtype, f"{first.name}_parts_level"
        )
        operands = (cut.view(first.operand), _along(level, cut, cut.inside))
        difference = self.compute("sub", operands, cut.shape, dtype, f"{below.name}_parts")
        exponential = self.compute(summed.op, (difference,), cut.shape, dtype, f"{summed.name}_parts")
        sums = self.reduce(s, cut, exponential)
        operands = (largest, self.of_row(first.name, cut))
        lower = self.compute("sub", operands, shape, dtype, f"{first.name}_lower")
        factor = self.compute(summed.op, (lower,), shape, dtype, f"{first.name}_factor")
        return self.compute("mul", (sums, factor), shape, dtype, f"{s.name}_corrected")

    def squares(self, s: Reduce, cut: RowCut, first: Reduce, how: CorrectedSum) -> View:
        """Sum squares about the means of parts, and add those of the means about the row's."""
        shape, dtype = cut.parts_shape, s.dtype
        operands: tuple[Operand, ...] = (self.results[first.name], Constant(cut.length))
        mean = self.compute("div", operands, shape, dtype, f"{how.mean}_parts")
        operands = (cut.view(first.operand), _along(mean, cut, cut.inside))
        centered = self.compute("sub", operands, cut.shape, dtype, f"{how.centered}_parts")
        square = self.compute("mul", (centered, centered), cut.shape, dtype, f"{s.operand.base}_parts")
        sums = self.reduce(s, cut, square)
        away = self.compute("sub", (mean, self.of_row(how.mean, cut)), shape, dtype, f"{how.mean}_away")
        squared = self.compute("mul", (away, away), shape, dtype, f"{how.mean}_squared")
        all_of_it = self.compute("mul", (squared, Constant(cut.length)), shape, dtype, f"{how.mean}_squares")
        return self.compute("add", (sums, all_of_it), shape, dtype, f"{s.name}_corrected")

    def place(self, s: Reduce, cut: RowCut, first: Reduce, hit: Compute) -> View:
        """Find the first place of the extreme in each part; return those that are the row's extreme."""
        extreme = self.results[first.name]
        operands = (cut.view(first.operand), _along(extreme, cut, cut.inside))
        own = self.compute("position", operands, cut.shape, hit.dtype, f"{hit.name}_parts")
        places = self.reduce(s, cut, own)
        return self.compute(
            "position_of_part",
            (extreme, self.of_row(first.name, cut), places),
            cut.parts_shape,
            hit.dtype,
            f"{hit.name}_of_parts",
            {"length": cut.length},
        )

    def of_row(self, name: str, cut: RowCut) -> View:
        """Return a view of what belongs to rows that reads it once for each part."""
        left = tuple(size for axis, size in enumerate(cut.parts_shape) if axis not in cut.parts_dims)
        steps = iter(contiguous(left))
        strides = tuple(0 if axis in cut.parts_dims else next(steps) for axis in range(len(cut.parts_shape)))
        return View(name, cut.parts_shape, strides)

    def compute(
        self,
        op: str,
        operands: tuple[Operand, ...],
        shape: tuple[int, ...],
        dtype: str,
        name: str,
        settings: Settings | None = None,
    ) -> View:
        name = self.program.fresh(name)
        computed = dtype
        if POINTWISE[op].computes == "operands":
            computed = promoted([self.program.dtypes[o.base] for o in operands[:2] if isinstance(o, View)])
            computed = "float32" if computed in SMALL_FLOATS else computed
        self.found.append(Compute(name, op, operands, settings or {}, shape, dtype, computed))
        self.program.define(name, shape, dtype)
        return View(name, shape, contiguous(shape))


def _length(reduction: Reduce) -> int:
    return reduction.operand.numel // math.prod(reduction.shape)


def _along(view: View, cut: RowCut, inside: Sequence[int]) -> View:
    """Return a view of what belongs to parts that reads it once for each of their elements."""
    steps = iter(view.strides)
    strides = tuple(0 if axis in inside else next(steps) for axis in range(len(cut.shape)))
    return replace(view, shape=cut.shape, strides=strides)


def cut_of_rows(reduction: Reduce, blocks: int, held: bool) -> RowCut | None:
    """Return how rows are cut; None where they are not.

    There are at least `blocks` blocks then, if the work allows. `held`: parts are short enough for a block to
    hold them, as two of their reductions read them.
    """
    shape, strides, dims = reduction.operand.shape, reduction.operand.strides, sorted(reduction.dims)
    rows, length = math.prod(reduction.shape), _length(reduction)
    innermost = max((axis for axis, size in enumerate(shape) if size > 1), default=0)
    beside = 1 if innermost in dims else min(_BESIDE, rows)
    if length * beside <= _HELD:
        return None
    enough = -(-blocks * beside // rows)
    if held:
        enough = max(enough, -(-length * beside // _PART))
    most = length * beside // _LEAST
    before, best = 1, None
    for number, dim in enumerate(dims):
        inside = [(shape[d], strides[d]) for d in dims[number + 1 :] if shape[d] > 1]
        run = all(step == size * inner for (_, step), (size, inner) in pairwise(inside))
        for count in _divisors(shape[dim]):
            parts = before * count
            if count > 1 and parts <= most:
                left = shape[dim] // count
                broken = not run or (left > 1 and bool(inside) and strides[dim] != math.prod(inside[0]))
                # Enough of them, or as many as there can be; then one run of memory each, then few.
                rank = (parts < enough, broken, parts if parts >= enough else -parts)
                if best is None or rank < best[0]:
                    best = rank, dim, count
        before *= shape[dim]
    if enough < 2 or best is None:
        return None
    _, axis, count = best
    cut = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    return RowCut(tuple(dims), cut, axis, count)


def _cut_of_product(reduction: Reduce, tiles: int, enough: int) -> RowCut | None:
    """Return the fewest parts of the depth of a product with which there are `enough` tiles, or nearly."""
    shape, [axis] = reduction.operand.shape, reduction.dims
    most = min(enough // tiles, shape[axis] // _LEAST_DEPTH)
    counts = [count for count in _divisors(shape[axis]) if 1 < count <= most]
    if not counts:
        return None
    even = [count for count in counts if shape[axis] // count % _TILE == 0]
    count = max(even or counts)
    cut = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    return RowCut((axis,), cut, axis, count)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]
