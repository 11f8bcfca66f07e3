"""The Triton text of products of matrices, with what comes before and after them: a program has a tile.

16-bit operands are multiplied as they are, on tensor cores, and summed in float32. Float32 is multiplied as
IEEE does, or as three products of TF32 (Ootomo and Yokota, https://arxiv.org/abs/2203.03341), which tensor
cores do. Programs are numbered by groups of rows of tiles, so that those that run together read the same
columns from the L2 cache (Tillet, triton-lang.org, "Matrix Multiplication").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.agent.builtin.codegen.backend import KnobReader
from kernelwright.agent.builtin.codegen.products import Axes, Product, Side, products_of
from kernelwright.agent.builtin.codegen.triton.emit import (
    Masks,
    Shape,
    TritonEmitter,
    TritonKnobs,
    digits,
    masked,
)
from kernelwright.agent.builtin.codegen.triton.types import power_of_two
from kernelwright.agent.builtin.ir.ops import POINTWISE
from kernelwright.agent.builtin.ir.program import Compute, Program, Reduce
from kernelwright.agent.builtin.ir.text import HALVES, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.kernelbench.free_sizes.size import ceiling, divides, is_free, is_one

# Chosen by what is built for sm_80 and sm_90 and by predicted times; not measured.
_TILES = (
    *((128, 256, 8), (128, 256, 16), (128, 128, 8), (64, 128, 4)),  # rows, columns, warps
    *((64, 64, 4), (32, 64, 4), (16, 64, 4)),
)
_TILES_OF_FLOAT = ((64, 64, 8), (32, 64, 4), (32, 32, 4), (16, 32, 2))
_STEP, _STEP_OF_FLOAT = 64, 32  # of the depth at a time: 128 bytes, of which tensor cores read rows
_LEAST, _LARGEST = 16, 256  # rows and columns of a tile; the least is what `tl.dot` takes
_STAGES = 3  # of the loop, whose loads are under way at a time
_GROUP = 8  # rows of tiles
_A_WARP, _GROUP_OF_WARPS = 1024, 4  # results that a warp has at least; warps that multiply together on sm_90
# Additions for each result that the largest tiles leave registers for, at 8 and 16 warps: a bias and a ReLU,
# and more than that, but no GELU.
_LIGHT, _HEAVY = 3, 16


@dataclass(frozen=True)
class ProductKnobs(TritonKnobs):
    """Knobs of a product: a tile has `rows` rows, `block` columns, and goes through the depth by `step`."""

    step: int = _STEP
    group: int = 1
    precision: str = ""  # of float32


def product_knobs(planned: Plan, program: Program, ask: KnobReader, cores: int, shared: int) -> ProductKnobs:
    """Choose a tile: the largest one of which three quarters of the `cores` multiprocessors have one.

    It is a smaller one where there are several sums, where what is multiplied is computed, and so goes to
    tensor cores by way of registers, and where much follows. `shared`: bytes that a program may have.
    """
    products = products_of(planned)
    product = products[0]
    rows, columns, images, depth = (
        _size(planned, axes) for axes in (product.down, product.along, product.images, product.depth)
    )
    half = all(dot_type(each, program) in HALVES for each in products)
    precision = "" if half else ask("precision", "ieee")
    most_rows, most_columns = _most(rows), _most(columns)
    tiles: Sequence[tuple[int, int, int]] = _TILES if half else _TILES_OF_FLOAT
    computed = any(each.prologue for each in products)
    smaller = max(len(products) if len(products) > 1 else int(computed), _weight(planned, product))
    tiles = tiles[min(smaller, len(tiles) - 1) :]
    tall, wide, warps = next(
        (
            tile
            for tile in tiles
            if 4 * images * -(-rows // min(tile[0], most_rows)) * -(-columns // min(tile[1], most_columns))
            >= 3 * cores
        ),
        tiles[-1],
    )
    tall, wide = min(tall, most_rows), min(wide, most_columns)
    warps = min(warps, max(tall * wide // _A_WARP, _GROUP_OF_WARPS))
    tall = min(int(ask("tile", str(tall), most_rows)), most_rows)
    wide = min(int(ask("across", str(wide), most_columns)), most_columns)
    step = min(_STEP if half else _STEP_OF_FLOAT, _most(depth))
    sides = {(side.accesses, down) for p in products for side, down in ((p.left, True), (p.right, False))}
    elements = sum(tall if down else wide for _, down in sides) * step
    stages = min(int(ask("stages", str(_STAGES))), shared // (elements * (2 if half else 4)))
    down = _GROUP if is_free(rows) else -(-rows // tall)
    group = min(int(ask("group", str(min(_GROUP, power_of_two(down))), down)), power_of_two(down))
    warps = int(ask("warps", str(warps)))
    return ProductKnobs(wide, tall, warps, stages=max(stages, 1), step=step, group=group, precision=precision)


def _weight(planned: Plan, product: Product) -> int:
    """Return how many tiles are too large for what follows a product: it needs registers beside the sums."""
    rows = [s for s in planned.region.statements if planned.level(s.name) == "row"]
    cost = sum(POINTWISE[s.op].cost for s in rows if isinstance(s, Compute) and s.op != "convert")
    read = [a for (_, level), a in planned.accesses.items() if level == "row"]
    both = [a for a in read if all(any(a.strides[n] for n in axes) for axes in (product.down, product.along))]
    return 2 if cost > _HEAVY else 1 if cost > _LIGHT or both else 0


def _most(size: int) -> int:
    """Return the largest side of a tile that is of use."""
    return _LARGEST if is_free(size) else max(min(power_of_two(size), _LARGEST), _LEAST)


def dot_type(product: Product, program: Program) -> str:
    """Return the dtype that operands are multiplied in."""
    found = {program.dtypes[side.operand.base] for side in (product.left, product.right)}
    return found.pop() if len(found) == 1 and found <= HALVES else "float32"


def _size(planned: Plan, axes: Axes) -> int:
    return math.prod(planned.sizes[axis] for axis in axes)


class TritonProductEmitter(TritonEmitter):
    rank = 2
    axis = 1

    def __init__(
        self,
        plan: Plan,
        program: Program,
        knobs: ProductKnobs,
        pointers: Mapping[str, str],
        reserved: frozenset[str],
    ) -> None:
        super().__init__(plan, program, knobs, pointers, reserved)
        self.product_knobs = knobs
        self.side: Side | None = None  # that is being read
        self.turned = False  # whether its depth lies along the first axis of its tile
        self.tiles_read: dict[tuple[Access, bool, str], str] = {}  # by name

    @cached_property
    def products(self) -> tuple[Product, ...]:
        return products_of(self.plan)

    @property
    def product(self) -> Product:
        """The first one, whose axes are those of all."""
        return self.products[0]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        product = self.product
        rows, columns, depth = (
            _size(self.plan, axes) for axes in (product.down, product.along, product.depth)
        )
        return rows, columns, depth

    @property
    def tiles(self) -> tuple[int, int]:
        rows, columns, _ = self.sizes
        return ceiling(rows, self.knobs.rows), ceiling(columns, self.knobs.block)

    @property
    def grid(self) -> int:
        return _size(self.plan, self.product.images) * math.prod(self.tiles)

    @property
    def loop_style(self) -> str:
        knobs = self.product_knobs
        return (
            f"a program for each {knobs.rows} by {knobs.block} of the product, by {knobs.step} of the depth"
        )

    @property
    def tile(self) -> str:
        return f"[{self.knobs.rows}, {self.knobs.block}]"

    @property
    def index(self) -> str:
        return ""  # nothing depends on it

    @property
    def far(self) -> bool:
        """True if an offset may need more than 32 bits; there are more elements than any value has."""
        plan = self.plan
        sizes = [self.program.shapes[a.base] for a in plan.accesses.values()]
        sizes += [self.program.shapes[name] for name in plan.outputs if name in self.program.shapes]
        counts = list(map(math.prod, sizes))
        return is_free(*counts) or max(counts) >= 1 << 31

    def present(self) -> Masks:
        rows, columns, _ = self.sizes
        inside = ("rows_in", rows, self.knobs.rows), ("columns_in", columns, self.knobs.block)
        return tuple(name for name, size, tile in inside if not divides(tile, size))

    def body(self, block: str) -> None:
        out, knobs = self.out, self.product_knobs
        rows, columns, depth = self.sizes
        self.place(block)
        out.add(f"row = (top * {self.many(knobs.rows)} + tl.arange(0, {knobs.rows}))[:, None]")
        out.add(f"column = (beside * {self.many(knobs.block)} + tl.arange(0, {knobs.block}))[None, :]")
        if "rows_in" in self.present():
            out.add(f"rows_in = row < {rows}")
        if "columns_in" in self.present():
            out.add(f"columns_in = column < {columns}")
        sums = [self.statements[product.reduction.name] for product in self.products]
        for name in sums:
            out.add(f"{name} = tl.zeros({self.tile}, tl.float32)")
            self.shapes[name] = "tile"
        for product in self.products:
            for side in (product.left, product.right):
                self.enter(side, product)
                self.load_before(
                    a for a in side.accesses if side.prologue and not any(a.strides[n] for n in product.depth)
                )
        out.open(f"for start in range(0, {depth}, {knobs.step})")
        out.add(f"depth = start + tl.arange(0, {knobs.step}){'.to(tl.int64)' if self.far else ''}")
        for name, product in zip(sums, self.products, strict=True):
            dtype = dot_type(product, self.program)
            operands = [self.operand_of(side, product, dtype) for side in (product.left, product.right)]
            precision = f', input_precision="{knobs.precision}"' if dtype == "float32" else ""
            out.add(f"{name} = tl.dot({', '.join(operands)}, {name}{precision})")
        self.side = None
        out.close()
        for stage in self.plan.stages:
            for statement in stage.row:
                assert isinstance(statement, Compute)  # a pick needs elements that are read again
                self.define(statement, "row")
        for name in self.plan.outputs:
            if self.plan.level(name) != "scalar":
                self.store(name)

    def place(self, block: str) -> None:
        """Write which tile a program has."""
        out, product, (down, along) = self.out, self.product, self.tiles
        number = block
        if product.images:
            out.add(f"outer = {block} // {self.many(down * along)}")
            number = f"{block} % {down * along}"
        out.add(f"tile = {number}")
        group = self.product_knobs.group
        if is_one(along) or is_one(down):
            out.add(f"top = {'tile' if is_one(along) else 'tile * 0'}")
            out.add(f"beside = {'tile * 0' if is_one(along) else 'tile'}")
        elif group == 1:
            out.add(f"top = tile // {along}")
            out.add(f"beside = tile % {along}")
        else:
            out.add(f"first = tile // {group * along} * {group}")
            height = str(group) if divides(group, down) else f"min({down} - first, {group})"
            out.add(f"top = first + tile % {group * along} % {height}")
            out.add(f"beside = tile % {group * along} // {height}")

    # The two sides.

    def enter(self, side: Side, product: Product) -> None:
        self.side, self.turned = side, side is product.right

    def operand_of(self, side: Side, product: Product, dtype: str) -> str:
        """Write what an operand's tile is computed from; return the tile."""
        self.enter(side, product)
        if not side.prologue:
            key = side.access, self.turned, dtype
            if key not in self.tiles_read:
                self.tiles_read[key] = self.load_tile(side.access, dtype)
            return self.tiles_read[key]
        loaded = dict(self.loaded)
        for statement in side.prologue:
            self.define(statement, "element")
        self.loaded = loaded  # another side reads the same along another axis
        name = self.statements[side.operand.base]
        if self.depth_mask:
            self.out.add(f"{name} = tl.where({self.depth_mask}, {name}, 0.0)")
        return name if dtype == "float32" else f"{name}.to(tl.{dtype})"

    def load_tile(self, access: Access, dtype: str) -> str:
        name = self.fresh(self.pointers[access.base].removesuffix("_ptr"))
        where, masks, _ = self.offset(access)
        rest = ", other=0.0" if masks else ""
        cast = "" if access.dtype == dtype else f".to(tl.{dtype})"
        self.out.add(
            f"{name} = tl.load({total([self.pointers[access.base], where])}{masked(masks)}{rest}){cast}"
        )
        return name

    @property
    def depth_text(self) -> str:
        return "depth[:, None]" if self.turned else "depth[None, :]"

    @property
    def depth_mask(self) -> str:
        depth = self.sizes[2]
        return "" if divides(self.product_knobs.step, depth) else f"({self.depth_text} < {depth})"

    def offset(self, access: Access) -> tuple[str, Masks, Shape]:
        product, plan = self.product, self.plan
        inside = self.side is not None and access in self.side.accesses
        outer = digits(plan, access, product.images, "outer")
        down = digits(plan, access, product.down, "row")
        along = digits(plan, access, product.along, "column")
        deep = digits(plan, access, product.depth, self.depth_text) if inside else ""
        where = total([outer, down, along, deep, *self.moved(access)])
        present = self.present()
        masks = [
            name for name, varies in (("rows_in", down), ("columns_in", along)) if varies and name in present
        ]
        if deep and self.depth_mask:
            masks.append(self.depth_mask)
        return where, tuple(masks), "tile" if down or along or deep else "scalar"

    # What only other tiles do.

    def reduce(self, statement: Reduce) -> None:
        raise AssertionError("there is one reduction, which is the product")

    def pick(self, statement: Reduce) -> None:
        raise AssertionError("a product is no row")

    def carried_shape(self, name: str) -> str:
        raise AssertionError("a product has no steps")
