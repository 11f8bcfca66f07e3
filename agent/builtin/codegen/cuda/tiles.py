"""Kernels that read values in another order of axes: tile by tile, turned in shared memory."""

from __future__ import annotations

from functools import cached_property

from kernelwright.agent.builtin.codegen.c_like import in_c
from kernelwright.agent.builtin.codegen.cuda.emit import CudaEmitter
from kernelwright.agent.builtin.codegen.cuda.types import STORAGE
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Tiled
from kernelwright.agent.builtin.scheduling.passes import Stage
from kernelwright.kernelbench.free_sizes.size import ceiling, divides, is_one

TILE = 32  # elements along each side of a tile: a warp reads, and writes, a row of it


class CudaTileEmitter(CudaEmitter):
    """A warp's threads lie along a tile's last axis, and the others below each other.

    What is contiguous along the other axis is read along that, and turned in shared memory, whose rows are
    one element longer, so that the elements of a column lie in different banks.
    """

    @cached_property
    def tiled(self) -> Tiled:
        return self.plan.tiled()

    @property
    def down(self) -> int:
        return ceiling(self.tiled.sizes[self.tiled.across], TILE)

    @property
    def along(self) -> int:
        return ceiling(self.tiled.sizes[-1], TILE)

    @property
    def blocks(self) -> int:
        return self.tiled.outer * self.down * self.along

    @property
    def own_elements(self) -> int:
        return TILE * TILE // self.knobs.threads

    @property
    def loop_style(self) -> str:
        return f"a block for each of {TILE} by {TILE}"

    @property
    def absent(self) -> str:
        return ""

    def constants(self) -> None:
        rows, columns = self.tiled.sizes[self.tiled.across], self.tiled.sizes[-1]
        step = self.knobs.threads // TILE
        self.define_sizes(ROWS=rows, COLUMNS=columns)
        self.out.add(f"constexpr int TILE = {TILE}, DOWN = {step};")

    def rows(self, block: str) -> None:
        plan, out, tiled = self.plan, self.out, self.tiled
        a_tile, tiles_down, tiles_along = (
            in_c(str(size)) for size in (self.down * self.along, self.down, self.along)
        )
        if not is_one(tiled.outer):
            out.add(f"const {self.whole} outer = {block} / {a_tile};")
        down = block if is_one(self.along) else f"{block} / {tiles_along}"
        down = down if is_one(tiled.outer) else f"{down} % {tiles_down}"
        along = "0" if is_one(self.along) else f"{block} % {tiles_along}"
        out.add(f"const {self.whole} top = {down} * TILE, first = {along} * TILE;")
        out.add("const int lane = threadIdx.x % TILE;")
        self.tiles = {access: self.fresh(f"{self.pointers[access.base]}_tile") for access in tiled.turned}
        for access, tile in self.tiles.items():
            out.add(f"__shared__ {STORAGE[access.dtype]} {tile}[TILE][TILE + 1];")
        self.walk()
        out.open("if (top + lane < ROWS && first + p < COLUMNS)" if self.partial else "")
        for access, tile in self.tiles.items():
            where = self.where(access, "(top + lane)", "(first + p)")
            out.add(f"{tile}[p][lane] = {self.pointers[access.base]}[{where}];")
        out.close(2)
        out.add("__syncthreads();")
        for access in dict.fromkeys([*plan.accesses.values(), *map(plan.output, plan.outputs)]):
            self.names.setdefault(access, self.pointers[access.base])
        self.one_pass(plan.stages[0])

    @property
    def partial(self) -> bool:
        return not (
            divides(TILE, self.tiled.sizes[self.tiled.across]) and divides(TILE, self.tiled.sizes[-1])
        )

    def walk(self) -> None:
        self.out.add("#pragma unroll")
        self.out.open("for (int p = threadIdx.x / TILE; p < TILE; p += DOWN)")

    def open_elements(self, stage: Stage) -> int:
        out = self.out
        self.walk()
        out.add(f"const {self.whole} row = top + p, j = first + lane;")
        if not self.partial:
            return 1
        out.open("if (row < ROWS && j < COLUMNS)")
        return 2

    def element_terms(self, access: Access) -> list[str]:
        return [self.where(access, "row", "j")]

    def element(self, access: Access, name: str, terms: list[str]) -> str:  # type: ignore[override]
        if access in self.tiles:
            return self.loaded(access, f"{self.tiles[access]}[lane][p]")
        return super().element(access, name, terms)

    def where(self, access: Access, row: str, column: str) -> str:
        """Return the offset of an element of a tile."""
        tiled, terms, product = self.tiled, [], 1
        strides = tiled.strides[access]
        for axis in reversed(tiled.others):
            text = "outer" if product == 1 else f"outer / {product}"
            text = text if axis == tiled.others[0] else f"{text} % {tiled.sizes[axis]}"
            terms.append(times(text, strides[axis]))
            product *= tiled.sizes[axis]
        ends = [times(row, strides[tiled.across]), times(column, strides[-1])]
        return total([*reversed(terms), *ends, access.begin]) or "0"

    def joined(self, text: str, ctype: str, op: str) -> str:
        raise AssertionError("there are no rows")
