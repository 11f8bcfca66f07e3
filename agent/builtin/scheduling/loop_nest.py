"""Loop nests: the axes of one region, which of them lie inside a row, and how the loops go over them.

A row is everything that shares one value of the region's row level. Work on a row alternates between row
statements (once per row) and passes (a loop over the row's elements), which `passes.py` sets out.

Four shapes of loop cover the spaces:
- `flat`: one axis, no rows; a "row" is a block of the tensor;
- `rows`: the innermost axis belongs to the row; the loop over it is the vector loop;
- `columns`: the innermost axis does not; neighbouring rows share a vector, one in each SIMD lane;
- `tiles`: a row is the innermost axis, and some of what it reads lies along another one.

relu(x) of [64, 512], softmax(x, -1) of [2048, 4096], softmax(x, 1) of [16, 64, 512], and x.T + 1 of [1024,
512], stored contiguously, are in this order:

    0: 32768 elements in blocks: reads %x, writes %relu
    0: 2048 rows of 4096: reads %x, writes %mul
    0: 8192 columns of 64, neighbours side by side: reads %x, writes %mul
    0: 524288 elements in tiles, whose axes change places: reads %x, writes %add

The plan of the third has sizes (16, 64, 512), of which only the middle axis is inside a row: 16 * 512 = 8192
rows of 64 elements. x is read with strides (32768, 512, 1), so the elements of a row are 512 floats apart and
a vector along a row would be a gather; neighbouring rows, 1 float apart, are loaded as one vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kernelwright.agent.builtin.ir.ops import POINTWISE
from kernelwright.agent.builtin.ir.program import (
    Clip,
    Compute,
    Fused,
    Program,
    Reduce,
    View,
    contiguous_axis,
    near,
    views_of,
)
from kernelwright.agent.builtin.ir.space import Level, Region
from kernelwright.agent.builtin.scheduling.passes import Stage, reads, stages_of
from kernelwright.kernelbench.free_sizes.size import is_free

Mode = Literal["flat", "rows", "columns", "tiles"]

# All chosen by hand.
KEPT_LIMIT = 1 << 17  # elements that a thread keeps on its stack: 512 KiB of float32
_CARRIED = 4096  # elements carried between steps by the rows of one part of a recurrence: 16 KiB of float32
_LEAST_PARTS = 8  # parts that the rows of a recurrence are cut into, at least, for threads to share


@dataclass(frozen=True)
class Access:
    """An external value as the region reads it: strides over all axes (0 where it does not vary).

    It begins at `offset`, or at the kernel's argument `at`. With every step of a recurrence it moves on by
    `move` elements; in a table, by `table` with every index.
    """

    base: str
    dtype: str
    strides: tuple[int, ...]
    offset: int
    move: int = 0
    table: int = 0
    at: str = ""

    @property
    def begin(self) -> str:
        """Empty for the beginning of the value."""
        return self.at or (str(self.offset) if self.offset else "")

    @property
    def varies(self) -> bool:
        return any(self.strides) or self.move != 0 or self.table != 0


@dataclass(frozen=True)
class Loop:
    """One axis of a loop nest: its length, and each access's stride along it."""

    size: int
    strides: dict[Access | None, int] = field(hash=False)  # None: an element's place in its row


@dataclass(frozen=True)
class Tiled:
    """Axes of a loop over tiles, merged where possible.

    A tile lies along the last axis and along `across`, where `turned` are contiguous; there is a tile for
    each place along the `others`.
    """

    sizes: list[int]
    strides: dict[Access, list[int]]
    turned: list[Access]
    across: int
    others: list[int]
    outer: int  # places along the others


@dataclass(frozen=True)
class Digit:
    """An axis, or neighbours that are one, in the joint index of several: index // product % size."""

    size: int
    stride: int  # of an access
    product: int  # of the sizes further in
    first: bool  # nothing lies further out


@dataclass(frozen=True)
class Plan:
    region: Region
    mode: Mode
    sizes: tuple[int, ...]  # of the axes, outermost first
    inner: tuple[bool, ...]  # which axes lie inside a row
    stages: tuple[Stage, ...]
    scalars: tuple[Fused, ...]  # statements after all rows
    outputs: tuple[str, ...]
    kept: tuple[str, ...]
    accesses: dict[tuple[View, Level], Access]
    results: dict[str, Access]  # where what a statement computes is written, if that is part of something

    @property
    def arguments(self) -> list[str]:
        """Arguments of the kernel besides its values: the offsets of some of them."""
        accesses = (*self.accesses.values(), *self.results.values())
        return list(dict.fromkeys(access.at for access in accesses if access.at))

    @property
    def row_length(self) -> int:
        return math.prod(s for s, inside in zip(self.sizes, self.inner, strict=True) if inside)

    @property
    def rows(self) -> int:
        return self.region.space.numel // self.row_length

    @property
    def rows_at_once(self) -> int:
        """Rows that a thread takes through a step of a recurrence before it goes on to the next step."""
        if self.mode != "rows":
            return 1
        most = self.rows // _LEAST_PARTS
        if is_free(self.rows):
            most = 1 << int(most).bit_length() >> 1  # about as many, whatever the sizes are
        return max(1, min(_CARRIED // self.row_length, most))

    @property
    def carried(self) -> dict[str, list[str]]:
        """Values computed for the next step of a recurrence, with the names they have there."""
        found: dict[str, list[str]] = {}
        if self.region.recurrence is not None:
            for name, source in self.region.recurrence.becomes.items():
                found.setdefault(source, []).append(name)
        return found

    @property
    def passes(self) -> str:
        """Number of passes, in words."""
        count = sum(stage.has_pass for stage in self.stages)
        return f"{count} pass{'' if count == 1 else 'es'} over each"

    @property
    def statements(self) -> dict[str, Fused]:
        return {s.name: s for s in self.region.statements}

    @property
    def totals(self) -> tuple[Reduce, ...]:
        """Reductions to a scalar."""
        levels = self.region.space.levels
        return tuple(
            s for s in self.region.statements if isinstance(s, Reduce) and levels[s.name] == "scalar"
        )

    @property
    def cost(self) -> int:
        """Additions for one element, roughly."""
        elements = [s for s in self.region.statements if self.level(s.name) == "element"]
        return sum(POINTWISE[s.op].cost for s in elements if isinstance(s, Compute))

    def level(self, name: str) -> Level:
        return self.region.space.levels[name]

    def access(self, view: View, level: Level) -> Access | None:
        """Access to an external value behind an operand; None where the region computes it."""
        return self.accesses.get((view, level))

    def output(self, name: str) -> Access:
        """Access by which a value of the region is written."""
        if name in self.results:
            return self.results[name]
        dtype, level = self.statements[name].dtype, self.level(name)
        if level == "element":
            return Access(name, dtype, self.full_strides(), 0)
        strides, step = [], 1
        for size, inside in zip(reversed(self.sizes), reversed(self.inner), strict=True):
            strides.append(0 if inside or level == "scalar" else step)
            step *= 1 if inside else size
        return Access(name, dtype, tuple(reversed(strides)), 0)

    def full_strides(self) -> tuple[int, ...]:
        """Strides of an element value, contiguous over all axes."""
        found, step = [], 1
        for size in reversed(self.sizes):
            found.append(step)
            step *= size
        return tuple(reversed(found))

    @property
    def vector_length(self) -> int:
        """Iterations of the vector loop with all external values in it."""
        if self.mode == "columns":
            return self.sizes[-1]
        whole = Access("", "", self.full_strides(), 0)
        return self.nest([whole, *self.accesses.values()], inside=True)[-1].size

    def lookups(self) -> list[tuple[Access, Access]]:
        """Tables of which each row reads a row as it lies, with the index that says which."""
        found, full = [], self.full_strides()
        for statement in self.region.statements:
            if not isinstance(statement, Compute) or statement.op != "take":
                continue
            table, index = (self.access(v, level) for v, level in reads(statement, self.region))
            if table is None or index is None:
                continue
            axes = list(zip(table.strides, index.strides, full, self.inner, strict=True))
            if all(t == (whole if inside else 0) and not (inside and i) for t, i, whole, inside in axes):
                found.append((table, index))
        return found

    def digits(self, strides: Sequence[int], axes: Sequence[int]) -> list[Digit]:
        """Digits of an access along `axes`, outermost first, without those along which it does not vary."""
        merged: list[tuple[int, int, int]] = []  # size, stride, product
        inner = 1
        for axis in reversed(axes):
            size, stride = self.sizes[axis], strides[axis]
            if merged and merged[-1][1] * merged[-1][0] == stride and (stride or not merged[-1][1]):
                merged[-1] = (merged[-1][0] * size, merged[-1][1], merged[-1][2])
            else:
                merged.append((size, stride, inner))
            inner *= size
        found = [Digit(*entry, first=entry is merged[-1]) for entry in merged if entry[1]]
        return found[::-1]

    def tiled(self) -> Tiled:
        """Return the axes of tiles in which what lies along another axis than the last is turned."""
        outputs = [self.output(name) for name in self.outputs]
        sizes, strides = self._merged([*self.accesses.values(), *outputs])
        turned = [a for a in dict.fromkeys(self.accesses.values()) if not near(strides[a][-1])]
        axes = range(len(sizes))
        across = next(axis for axis in axes if all(strides[a][axis] == 1 for a in turned))
        others = [axis for axis in axes[:-1] if axis != across]
        return Tiled(sizes, strides, turned, across, others, math.prod(sizes[axis] for axis in others))

    def _merged(self, accesses: Sequence[Access]) -> tuple[list[int], dict[Access, list[int]]]:
        """Sizes of the axes and every access's strides along them, with axes that can be one as one."""
        sizes: list[int] = []
        strides: dict[Access, list[int]] = {a: [] for a in accesses}
        for axis, size in enumerate(self.sizes):
            if sizes and all(strides[a][-1] == a.strides[axis] * size for a in accesses):
                sizes[-1] *= size
                for a in accesses:
                    strides[a][-1] = a.strides[axis]
                continue
            sizes.append(size)
            for a in accesses:
                strides[a].append(a.strides[axis])
        return sizes, strides

    def clips(self) -> list[tuple[int, int, Clip]]:
        """Clips of windows, with the axes of windows and of their elements."""
        axes = self.region.space.axes
        found = [(axes.index(w), axes.index(e), clip) for w, e, clip in self.region.space.clips]
        return sorted(found, key=lambda clip: clip[1])

    def nest(self, accesses: Iterable[Access], inside: bool) -> list[Loop]:
        """Return the loops over the axes inside (or outside) a row, merged as far as `accesses` allow."""
        full = self.full_strides()
        place, step = [0] * len(self.sizes), 1
        for axis in reversed(range(len(self.sizes))):
            if self.inner[axis] == inside:
                place[axis] = step
                step *= self.sizes[axis]
        vectors: dict[Access | None, Sequence[int]] = {None: place}
        vectors.update({a: a.strides for a in accesses})
        loops: list[Loop] = []
        previous = -2
        for axis, size in enumerate(self.sizes):
            if self.inner[axis] != inside:
                continue
            strides = {key: vector[axis] for key, vector in vectors.items()}
            if previous == axis - 1 and loops and not self.region.space.clips:
                last = loops[-1]
                joined = all(last.strides[k] == stride * size for k, stride in strides.items())
                if joined and full[previous] == full[axis] * size:
                    loops[-1] = Loop(last.size * size, strides)
                    previous = axis
                    continue
            loops.append(Loop(size, strides))
            previous = axis
        return loops


def plan(region: Region, program: Program, outputs: Sequence[str], keep: bool = True) -> Plan:
    """Return the plan of a region whose `outputs` are read outside it."""
    space = region.space
    accesses = _accesses(region, program)
    results = _results(region, program)
    sizes, inner, mode = _axes(region, [*accesses.values(), *results.values()])
    stages, scalars, kept = stages_of(region, outputs, keep and mode not in ("flat", "tiles"))
    if len(kept) * _kept_size(sizes, inner, mode) > KEPT_LIMIT:
        stages, scalars, kept = stages_of(region, outputs, keep=False)
    return Plan(
        region=region,
        mode=mode,
        sizes=sizes,
        inner=inner,
        stages=stages,
        scalars=scalars,
        outputs=tuple(name for name in space.levels if name in set(outputs)),
        kept=kept,
        accesses=accesses,
        results=results,
    )


def _accesses(region: Region, program: Program) -> dict[tuple[View, Level], Access]:
    space = region.space
    found: dict[tuple[View, Level], Access] = {}
    for statement in region.statements:
        for view, level in reads(statement, region):
            if view.base not in space.levels:
                found[(view, level)] = access(view, level, region, program.dtypes[view.base])
    return found


def access(view: View, level: Level, region: Region, dtype: str) -> Access:
    """Access by which a view is read, or written, over all axes of a region."""
    space = region.space
    strides: tuple[int, ...] = (0,)
    if space.axes:
        own = iter(space.strides(view, level))
        strides = tuple(
            0 if level == "scalar" or (level == "row" and space.is_reduced(axis)) else next(own)
            for axis in space.axes
        )
    return Access(view.base, dtype, strides, view.offset, view.move, view.table)


def _results(region: Region, program: Program) -> dict[str, Access]:
    found = {}
    names = {s.name for s in region.statements}
    placed = {name: view for name, view in program.placed.items() if name in names}
    for name, view in (region.recurrence.results if region.recurrence is not None else placed).items():
        where = access(view, region.space.levels[name], region, program.dtypes[name])
        found[name] = replace(where, base=name)
    return found


def _axes(region: Region, accesses: Sequence[Access]) -> tuple[tuple[int, ...], tuple[bool, ...], Mode]:
    """Sizes of the axes and which of them lie inside a row."""
    space = region.space
    sizes = tuple(high // low for low, high in space.axes)
    if not sizes:  # one element
        return (1,), (True,), "flat"
    if space.reduced:
        inner = tuple(space.is_reduced(axis) for axis in space.axes)
        return sizes, inner, "rows" if inner[-1] else "columns"
    if any(contiguous_axis(view) is not None for s in region.statements for view in views_of(s)):
        return sizes, (*(False,) * (len(sizes) - 1), True), "tiles"
    # Nothing fixes the rows: they are what varies together along the innermost axes.
    first = len(sizes)
    while first > 0 and (
        first == len(sizes) or all(a.strides[first - 1] == a.strides[first] * sizes[first] for a in accesses)
    ):
        first -= 1
    inner = tuple(axis >= first for axis in range(len(sizes)))
    return sizes, inner, "flat" if first == 0 else "rows"


def _kept_size(sizes: tuple[int, ...], inner: tuple[bool, ...], mode: Mode) -> int:
    """Elements of the buffer for one kept value, with the fewest columns a block has."""
    length = math.prod(s for s, inside in zip(sizes, inner, strict=True) if inside)
    return length * min(sizes[-1], 64) if mode == "columns" else length
