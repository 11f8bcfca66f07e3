"""Products of small matrices with what follows them: tile by tile, through shared memory and registers.

A block has a tile of the result; its threads go through the depth together, and each sums up some elements
that lie as far apart as there are threads along a side, so that neither shared memory nor stores have
conflicts (after Boehm, https://siboehm.com/articles/22/CUDA-MMM).
"""

from __future__ import annotations

import math
from functools import cached_property

from kernelwright.agent.builtin.codegen.c_like import in_c
from kernelwright.agent.builtin.codegen.cuda.emit import CudaEmitter
from kernelwright.agent.builtin.codegen.products import Product, product_of
from kernelwright.agent.builtin.ir.program import Compute
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access
from kernelwright.agent.builtin.scheduling.passes import Stage
from kernelwright.kernelbench.free_sizes.size import ceiling, divides, is_one

# Chosen by hand, not measured.
SIDE = 16  # threads along each side of a tile
MOST = 128  # rows and columns of a tile, whose sums are in 64 registers of a thread
STEP = 16  # elements of the depth that are in shared memory at a time
BUSY = 128  # tiles from which on larger ones pay: about one for each of an H100's 132 multiprocessors


class ProductEmitter(CudaEmitter):
    @cached_property
    def product(self) -> Product:
        found = product_of(self.plan)
        assert found is not None
        return found

    def size(self, axes: tuple[int, ...]) -> int:
        return math.prod(self.plan.sizes[axis] for axis in axes)

    @property
    def tile(self) -> int:
        return self.knobs.rows

    @property
    def tiles(self) -> tuple[int, int]:
        product = self.product
        return ceiling(self.size(product.down), self.tile), ceiling(self.size(product.along), self.tile)

    @property
    def blocks(self) -> int:
        return self.size(self.product.images) * math.prod(self.tiles)

    @property
    def own_elements(self) -> int:
        return self.size(self.product.depth)

    @property
    def loop_style(self) -> str:
        return f"a block for each {self.tile} by {self.tile} of the product"

    @property
    def absent(self) -> str:
        return ""

    def constants(self) -> None:
        product = self.product
        rows, columns, depth = map(self.size, (product.down, product.along, product.depth))
        self.define_sizes(ROWS=rows, COLUMNS=columns, DEPTH=depth)
        self.out.add(f"constexpr int TILE = {self.tile}, STEP = {STEP}, SIDE = {SIDE}, EACH = TILE / SIDE;")

    def rows(self, block: str) -> None:
        out, product, (down, along) = self.out, self.product, self.tiles
        if product.images:
            out.add(f"const {self.whole} outer = {block} / {in_c(str(down * along))};")
        place = block if is_one(along) else f"{block} / {in_c(str(along))}"
        place = f"{place} % {in_c(str(down))}" if product.images else place
        beside = "0" if is_one(along) else f"{block} % {in_c(str(along))}"
        out.add(f"const {self.whole} top = {place} * TILE, first = {beside} * TILE;")
        out.add("const int lane = threadIdx.x % SIDE, level = threadIdx.x / SIDE;")
        out.add("__shared__ float above[STEP][TILE + 2], beside[STEP][TILE + 2];")
        out.add("float sums[EACH][EACH] = {};")
        out.open(f"for ({self.whole} start = 0; start < DEPTH; start += STEP)")
        self.fetch(product.left.access, product.down, "above", "top", "ROWS")
        self.fetch(product.right.access, product.along, "beside", "first", "COLUMNS")
        out.add("__syncthreads();")
        out.add("#pragma unroll")
        out.open("for (int p = 0; p < STEP; ++p)")
        out.add("float left[EACH], right[EACH];")
        for name, tile, thread in (("left", "above", "level"), ("right", "beside", "lane")):
            out.add("#pragma unroll")
            out.add(f"for (int k = 0; k < EACH; ++k) {name}[k] = {tile}[p][{thread} + k * SIDE];")
        out.add("#pragma unroll")
        out.open("for (int j = 0; j < EACH; ++j)")
        out.add("#pragma unroll")
        out.add("for (int i = 0; i < EACH; ++i) sums[j][i] += left[j] * right[i];")
        out.close(2)
        out.add("__syncthreads();")
        out.close()
        self.results()

    def fetch(self, access: Access, axes: tuple[int, ...], tile: str, corner: str, size: str) -> None:
        """Load a tile of a matrix into shared memory, along what is contiguous."""
        out, depth = self.out, self.product.depth
        deep = access.strides[depth[-1]] < access.strides[axes[-1]]
        split = ("p / STEP", "p % STEP") if deep else ("p % TILE", "p / TILE")
        out.add("#pragma unroll")
        out.open(f"for (int p = threadIdx.x; p < TILE * STEP; p += {self.knobs.threads})")
        out.add(f"const int i = {split[0]}, k = {split[1]};")
        terms = [
            *self.outside(access, self.product.images, "outer"),
            *self.outside(access, axes, f"({corner} + i)"),
            *self.outside(access, depth, "(start + k)"),
        ]
        text = self.loaded(access, f"{self.pointers[access.base]}[{total([*terms, access.begin])}]")
        conditions = []
        if not divides(self.tile, self.size(axes)):
            conditions.append(f"{corner} + i < {size}")
        if not divides(STEP, self.size(depth)):
            conditions.append("start + k < DEPTH")
        if conditions:
            text = f"{' && '.join(conditions)} ? {text} : 0.0f"
        out.add(f"{tile}[k][i] = {text};")
        out.close()

    def results(self) -> None:
        """Write what follows the product, element by element, and the stores."""
        out, plan, product = self.out, self.plan, self.product
        for axis, size, place in (("row", "ROWS", "top + level"), ("column", "COLUMNS", "first + lane")):
            variable = "j" if axis == "row" else "i"
            out.add("#pragma unroll")
            out.open(f"for (int {variable} = 0; {variable} < EACH; ++{variable})")
            out.add(f"const {self.whole} {axis} = {place} + {variable} * SIDE;")
            if not divides(self.tile, self.size(product.down if axis == "row" else product.along)):
                out.add(f"if ({axis} >= {size}) break;")
        out.add(f"const float {self.name(product.reduction)} = sums[j][i];")
        for access in dict.fromkeys(plan.accesses.values()):
            if access.varies and access not in (product.left.access, product.right.access):
                self.load_value(access, self.place(access))
        for stage in plan.stages:
            for statement in stage.row:
                assert isinstance(statement, Compute)  # a pick needs elements that are read again
                self.define(statement, "row", self.names)
        for name in plan.outputs:
            text = self.stored(name, self.statements[name])
            out.add(f"{self.pointers[name]}[{self.place(plan.output(name)) or '0'}] = {text};")
        out.close(2)

    def place(self, access: Access) -> str:
        """Return the offset of an element of the result, or of what is read for it."""
        product = self.product
        terms = [
            *self.outside(access, product.images, "outer"),
            *self.outside(access, product.down, "row"),
            *self.outside(access, product.along, "column"),
            times("step", access.move),
            access.begin,
        ]
        return total(terms)

    def open_elements(self, stage: Stage) -> int:
        raise AssertionError("there are no passes")

    def element_terms(self, access: Access) -> list[str]:
        raise AssertionError("there are no passes")

    def joined(self, text: str, ctype: str, op: str) -> str:
        raise AssertionError("each thread has sums of its own")
