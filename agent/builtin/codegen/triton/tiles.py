"""The shapes of tiles: elements one after the other, rows with their elements, elements along two axes."""

from __future__ import annotations

from functools import cached_property

from kernelwright.agent.builtin.codegen.triton.emit import Masks, Shape, TritonEmitter, digits
from kernelwright.agent.builtin.codegen.triton.types import VALUE, literal
from kernelwright.agent.builtin.ir.ops import FLOATS
from kernelwright.agent.builtin.ir.program import Compute, Reduce, Scan
from kernelwright.agent.builtin.ir.text import total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Tiled
from kernelwright.agent.builtin.scheduling.passes import Stage, closure, reads
from kernelwright.kernelbench.free_sizes.size import ceiling, divides, is_free

TILE = 32  # elements along each axis of a tile that is turned


def given(*masks: str) -> Masks:
    """The masks that are not empty."""
    return tuple(mask for mask in masks if mask)


class TritonFlatEmitter(TritonEmitter):
    """Kernels without rows: a tile is a block of elements."""

    axis = 0
    index = "i"
    rank = 1

    @property
    def tile(self) -> str:
        return f"[{self.knobs.block}]"

    @property
    def grid(self) -> int:
        return ceiling(self.plan.region.space.numel, self.knobs.block)

    def body(self, block: str) -> None:
        numel = self.plan.region.space.numel
        block_size = self.knobs.block
        self.out.add(f"i = {block} * {self.many(block_size)} + tl.arange(0, {block_size})")
        if self.present():
            self.out.add(f"inside = i < {numel}")
        if self.plan.region.recurrence is not None:
            self.steps()
        else:
            self.in_order()

    def present(self) -> Masks:
        return given("inside" if self.plan.region.space.numel % self.knobs.block else "")

    def offset(self, access: Access) -> tuple[str, Masks, Shape]:
        along = digits(self.plan, access, range(len(self.plan.sizes)), "i")
        where = total([along, *self.moved(access)])
        return (where, self.present(), "tile") if along else (where, (), "scalar")

    def reduce(self, statement: Reduce) -> None:
        self.add_to_total(statement, self.reduced(statement.op, self.element(statement), statement.dtype, 0))

    def pick(self, statement: Reduce) -> None:
        raise AssertionError("there are no rows")

    def carried_shape(self, name: str) -> str:
        return self.tile


class TritonRowEmitter(TritonEmitter):
    """A tile is some rows, whole or a block of each."""

    axis = 1
    rank = 2
    at = "j"  # the index of elements in their rows

    @property
    def index(self) -> str:
        return self.at if self.at == "j" and not self.far else f"{self.at}.to(tl.int32)"

    @property
    def tile(self) -> str:
        return f"[{self.knobs.rows}, {self.knobs.block}]"

    @property
    def grid(self) -> int:
        return ceiling(self.plan.rows, self.knobs.rows)

    @property
    def held(self) -> bool:
        """True if whole rows are in registers."""
        return not is_free(self.plan.row_length) and self.knobs.block >= self.plan.row_length

    @property
    def loop_style(self) -> str:
        return "each held in registers" if self.held else self.plan.passes

    @property
    def rows_in(self) -> str:
        return "rows_in" if self.plan.rows % self.knobs.rows else ""

    @property
    def columns_in(self) -> str:
        if self.at != "j":
            return f"{self.at}_in"
        clipped = bool(self.plan.region.space.clips)
        return "columns_in" if clipped or self.plan.row_length % self.knobs.block else ""

    def present(self) -> Masks:
        return given(self.columns_in)

    def body(self, block: str) -> None:
        plan, out, rows = self.plan, self.out, self.knobs.rows
        first = f"{block} * {self.many(rows)}"
        if any(self.alike(access) for access in plan.accesses.values()):
            out.add(f"first = {first}")
            first = "first"
        out.add(f"row = {first} + tl.arange(0, {rows})[:, None]")
        if self.rows_in:
            out.add(f"rows_in = row < {plan.rows}")
        if not self.held:
            self.passes()
        else:
            self.columns("")
            if plan.region.recurrence is not None:
                self.steps()
            else:
                self.in_order()
        for reduction in plan.totals:
            if reads(reduction, plan.region)[0][1] == "row":
                text, _ = self.operand(reduction.operand, "row", reduction.dtype)
                self.add_rows(reduction, text)

    def columns(self, start: str) -> None:
        """Define the indices of elements, and the mask of those that exist."""
        out, length = self.out, self.plan.row_length
        far = ".to(tl.int64)" if self.far else ""
        out.add(f"j = {start}tl.arange(0, {self.knobs.block})[None, :]{far}")
        conditions = [f"j < {length}"] if length % self.knobs.block else []
        rows = [axis for axis, inside in enumerate(self.plan.inner) if not inside]
        columns = [axis for axis, inside in enumerate(self.plan.inner) if inside]
        for windows, elements, clip in self.plan.clips():
            place = total(
                [
                    self.coordinate(windows, rows, "row", clip.stride),
                    self.coordinate(elements, columns, "j", clip.dilation),
                    str(-clip.padding) if clip.padding else "",
                ]
            )
            name = self.fresh("place")
            out.add(f"{name} = {place or 'j * 0'}")
            conditions += [f"{name} >= 0", f"{name} < {clip.size}"]
        if len(conditions) > 1:
            conditions = [f"({condition})" for condition in conditions]
        if conditions:
            out.add(f"columns_in = {' & '.join(conditions)}")

    def coordinate(self, axis: int, axes: list[int], variable: str, scale: int) -> str:
        """Return the index along one of the axes, times a number."""
        strides = tuple(scale if other == axis else 0 for other in range(len(self.plan.sizes)))
        return digits(self.plan, Access("", "", strides, 0), axes, variable)

    def alike(self, access: Access) -> bool:
        """Return True if all rows of a program read the same: an element at a time, one for all of them."""
        if self.knobs.block > 1 or access.table or any(access.strides[w] for w, _, _ in self.plan.clips()):
            return False
        rows = [axis for axis, inside in enumerate(self.plan.inner) if not inside]
        found = self.plan.digits(access.strides, rows)
        return bool(found) and all(divides(self.knobs.rows, digit.product) for digit in found)

    def offset(self, access: Access) -> tuple[str, Masks, Shape]:
        rows = [axis for axis, inside in enumerate(self.plan.inner) if not inside]
        columns = [axis for axis, inside in enumerate(self.plan.inner) if inside]
        down = digits(self.plan, access, rows, "row")
        along = digits(self.plan, access, columns, self.at)
        if self.at == "j" and self.alike(access):
            down = digits(self.plan, access, rows, "first")
            where = total([down, along, *self.moved(access)])
            return where if along else f"{where} + tl.arange(0, 1)[None, :]", (), "tile" if along else "row"
        where = total([down, along, *self.moved(access)])
        if along:
            masks = given(self.rows_in if down else "", self.columns_in)
            if not down and self.plan.region.space.clips:
                where += " + row * 0"  # pointers have the shape of their mask
            return where, masks, "tile" if self.at == "j" else "row"
        return where, given(self.rows_in if down else ""), "row" if down else "scalar"

    def carried_shape(self, name: str) -> str:
        return self.tile if self.plan.level(name) == "element" else f"[{self.knobs.rows}, 1]"

    # Reductions.

    def reduce(self, statement: Reduce) -> None:
        if reads(statement, self.plan.region)[0][1] == "row":
            return  # of all rows: after them
        text = self.reduced(statement.op, self.element(statement), statement.dtype, 1)
        self.set_reduced(statement, text)

    def set_reduced(self, statement: Reduce, text: str) -> None:
        if self.plan.level(statement.name) == "scalar":
            self.add_rows(statement, text)
            return
        name = self.statements[statement.name]
        self.out.add(f"{name} = {text}")
        self.shapes[name] = "row"

    def add_rows(self, reduction: Reduce, text: str) -> None:
        """Add what each row has found to the total."""
        text = f"tl.broadcast_to({text}, [{self.knobs.rows}, 1])"
        if self.rows_in:
            rest = literal(*self.neutral(reduction.op, reduction.dtype))
            text = f"tl.where(rows_in, {text}, {rest})"
        self.add_to_total(reduction, self.reduced(reduction.op, text, reduction.dtype, 0))

    def pick(self, statement: Reduce) -> None:
        out, plan = self.out, self.plan
        assert statement.index is not None
        at = self.fresh(f"{statement.name}_at")
        index, _ = self.operand(statement.index, "row", "int64")
        out.add(f"{at} = {index}")
        inside = f"({at} >= 0) & ({at} < {plan.row_length})"
        out.add(f"{at}_in = {' & '.join(given(self.rows_in, inside))}")
        by_name = {s.name: s for s in plan.region.statements if plan.level(s.name) == "element"}
        needed = closure([statement.operand.base], by_name, set())
        before = dict(self.statements), dict(self.loaded), self.named
        names, loaded, _ = before
        self.at, self.named = at, {}  # what is loaded at this place has names of its own
        self.loaded = {a: n for a, n in loaded.items() if self.shapes[n] != "tile"}
        for name, element in by_name.items():
            if name in needed and isinstance(element, Compute):
                self.statements[name] = self.fresh(f"{name}_at")
                self.define(element, "element")
        value, _ = self.operand(statement.operand, "element", statement.dtype)
        nothing = float("nan") if statement.dtype in FLOATS else 0
        result = names[statement.name]
        out.add(f"{result} = tl.where({at}_in, {value}, {literal(nothing, statement.dtype)})")
        self.statements, self.loaded, self.named = before
        self.at = "j"
        self.shapes[result] = "row"

    # Rows that are gone through in passes.

    def passes(self) -> None:
        plan = self.plan
        for stage in plan.stages:
            for statement in stage.row:
                self.execute(statement)
            if stage.has_pass:
                self.one_pass(stage)
        for name in plan.outputs:
            if plan.level(name) == "row":
                self.store(name)

    def one_pass(self, stage: Stage) -> None:
        out = self.out
        for reduction in stage.reductions:
            first = literal(*self.neutral(reduction.op, reduction.dtype))
            out.add(f"{self.lanes(reduction)} = tl.full({self.tile}, {first}, {VALUE[reduction.dtype]})")
        self.load_before(a for a in self.read_by(stage.in_pass) if self.offset(a)[2] != "tile")
        scans = [s for s in stage.elements if isinstance(s, Scan)]
        for scan in scans:
            first = literal(*self.neutral(scan.op, scan.dtype))
            shape = f"[{self.knobs.rows}, 1]"
            out.add(f"{self.running(scan)} = tl.full({shape}, {first}, {VALUE[scan.dtype]})")
        counted = "tl.static_range" if self.knobs.block == 1 else "range"  # places in a window are constants
        out.open(f"for start in {counted}(0, {self.plan.row_length}, {self.knobs.block})")
        self.columns("start + ")
        loaded = dict(self.loaded)
        for statement in stage.elements:
            self.execute(statement)
            if isinstance(statement, Scan):
                self.go_on(statement)
        for reduction in stage.reductions:
            lanes = self.lanes(reduction)
            out.add(f"{lanes} = {self.update(reduction.op, lanes, self.element(reduction))}")
        for name in stage.stores:
            self.store(name)
        self.loaded = loaded
        out.close()
        for reduction in stage.reductions:
            text = self.reduced(reduction.op, self.lanes(reduction), reduction.dtype, 1)
            self.set_reduced(reduction, text)

    def lanes(self, reduction: Reduce) -> str:
        return f"{self.statements[reduction.name]}_lanes"

    def running(self, scan: Scan) -> str:
        return f"{self.statements[scan.name]}_running"

    def go_on(self, scan: Scan) -> None:
        """Put a block's scan behind those of the blocks before it."""
        name, running = self.statements[scan.name], self.running(scan)
        self.out.add(f"{name} = {self.update(scan.op, running, name)}")
        all_of_it = self.reduced(scan.op, self.element(scan), scan.dtype, 1)
        self.out.add(f"{running} = {self.update(scan.op, running, all_of_it)}")


class TurnedEmitter(TritonEmitter):
    """Some of what is read lies along another axis than the last: a tile has elements along both."""

    axis = 1
    index = "along"
    rank = 2

    @cached_property
    def tiled(self) -> Tiled:
        return self.plan.tiled()

    @property
    def rows(self) -> int:
        return self.tiled.sizes[self.tiled.across]

    @property
    def columns(self) -> int:
        return self.tiled.sizes[-1]

    @property
    def tile(self) -> str:
        return f"[{TILE}, {TILE}]"

    @property
    def down(self) -> int:
        return ceiling(self.rows, TILE)

    @property
    def along(self) -> int:
        return ceiling(self.columns, TILE)

    @property
    def grid(self) -> int:
        return self.tiled.outer * self.down * self.along

    def body(self, block: str) -> None:
        out, down, along = self.out, self.down, self.along
        if self.tiled.others:
            out.add(f"outer = {block} // {self.many(down * along)}")
        out.add(f"down = {block} // {along} % {down} * {self.many(TILE)} + tl.arange(0, {TILE})[:, None]")
        out.add(f"along = {block} % {along} * {self.many(TILE)} + tl.arange(0, {TILE})[None, :]")
        if self.rows % TILE:
            out.add(f"rows_in = down < {self.rows}")
        if self.columns % TILE:
            out.add(f"columns_in = along < {self.columns}")
        self.in_order()

    def present(self) -> Masks:
        rows = "rows_in" if self.rows % TILE else ""
        return given(rows, "columns_in" if self.columns % TILE else "")

    def offset(self, access: Access) -> tuple[str, Masks, Shape]:
        tiled, terms, product = self.tiled, [], 1
        strides = tiled.strides[access]
        for axis in reversed(tiled.others):
            text = "outer" if product == 1 else f"outer // {product}"
            text = text if axis == tiled.others[0] else f"{text} % {tiled.sizes[axis]}"
            terms += [f"{text} * {strides[axis]}"] if strides[axis] else []
            product *= tiled.sizes[axis]
        y, x = strides[tiled.across], strides[-1]
        if not y and not x:
            return total([*reversed(terms), *self.moved(access)]), (), "scalar"
        where = total([*reversed(terms), f"down * {y}", f"along * {x}", *self.moved(access)])
        return where, self.present(), "tile"

    def reduce(self, statement: Reduce) -> None:
        raise AssertionError("there are no rows")

    def pick(self, statement: Reduce) -> None:
        raise AssertionError("there are no rows")

    def carried_shape(self, name: str) -> str:
        return self.tile
