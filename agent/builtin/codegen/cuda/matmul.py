"""Products of small matrices with what follows them: tile by tile, through shared memory and registers.

A block has a tile of the result; its threads go through the depth together, and each sums up some elements
that lie as far apart as there are threads along a side, so that neither shared memory nor stores have
conflicts (after Boehm, https://siboehm.com/articles/22/CUDA-MMM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from kernelwright.agent.builtin.codegen.c_like import in_c
from kernelwright.agent.builtin.codegen.cuda.emit import CudaEmitter
from kernelwright.agent.builtin.ir.program import Compute, Reduce, View
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.agent.builtin.scheduling.passes import Stage
from kernelwright.kernelbench.free_sizes.size import ceiling, divides, is_one

# Chosen by hand, not measured.
SIDE = 16  # threads along each side of a tile
STEP = 16  # elements of the depth that are in shared memory at a time
BUSY = 128  # tiles from which on larger ones pay: about one for each of an H100's 132 multiprocessors


@dataclass(frozen=True)
class Product:
    """The sum of left * right along `depth`; each varies along axes of its own, and both along `images`."""

    left: Access
    right: Access
    reduction: Reduce
    images: tuple[int, ...]
    down: tuple[int, ...]
    along: tuple[int, ...]
    depth: tuple[int, ...]


def product_of(planned: Plan) -> Product | None:
    """Return the product that a kernel computes, where it is of two matrices that are read as they are."""
    region, space = planned.region, planned.region.space
    elements = [s for s in region.statements if planned.level(s.name) == "element"]
    reductions = [s for s in region.statements if isinstance(s, Reduce)]
    if len(elements) != 1 or len(reductions) != 1 or planned.totals or space.clips or region.recurrence:
        return None
    [mul], [reduction] = elements, reductions
    if not isinstance(mul, Compute) or mul.op != "mul" or reduction.op != "sum":
        return None
    read = [planned.access(o, "element") for o in mul.operands if isinstance(o, View)]
    if len(read) != 2 or mul.name in planned.outputs:
        return None
    left, right = read
    if left is None or right is None:
        return None
    kinds: dict[tuple[bool, bool, bool], list[int]] = {}
    for axis, inside in enumerate(planned.inner):
        kind = inside, bool(left.strides[axis]), bool(right.strides[axis])
        kinds.setdefault(kind, []).append(axis)
    images, depth = kinds.pop((False, True, True), []), kinds.pop((True, True, True), [])
    down, along = kinds.pop((False, True, False), []), kinds.pop((False, False, True), [])
    if kinds or not down or not along or not depth:
        return None
    if down[0] > along[0]:  # what lies further out is above
        left, right, down, along = right, left, along, down
    return Product(left, right, reduction, *map(tuple, (images, down, along, depth)))


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
        self.fetch(product.left, product.down, "above", "top", "ROWS")
        self.fetch(product.right, product.along, "beside", "first", "COLUMNS")
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
            if access.varies and access not in (product.left, product.right):
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
