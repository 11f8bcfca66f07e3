"""Threads in CUDA: a block shares all elements (`FlatEmitter`) or the elements of some rows (`RowEmitter`).

softmax(x, -1) with x of [2048, 1000] gives a row to each block of 256 threads. Thread `lane` has elements
lane, lane + 256, lane + 512 and lane + 768 of it, if they exist, in registers throughout, so that x is read
once:

    constexpr int ROWS = 2048, COLUMNS = 1000, LANES = 256, EACH = 4;
    const int row = blockIdx.x;
    const int lane = threadIdx.x;
    float x_values[EACH];
    #pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int j = lane + k * LANES;
        if (j < COLUMNS) {
            x_values[k] = x_row[j];
            amax_own = maximum(amax_own, x_values[k]);
        }
    }
    const float amax = across_lanes<LANES>(amax_own, [](float a, float b) -> float { return maximum(a, b); });

`across_lanes` joins the threads' results by warp shuffles and shared memory. x.sum(1) with x of [16, 64, 512]
has its rows across memory: there threads of a warp take 32 neighbouring rows, and 16 of them, one in each
warp, share a row's 64 elements and join their sums by `down_lanes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from kernelwright.agent.builtin.codegen.cuda.emit import CudaEmitter
from kernelwright.agent.builtin.codegen.cuda.types import STORAGE
from kernelwright.agent.builtin.codegen.gpu import FILLING
from kernelwright.agent.builtin.ir.program import Compute, Reduce, Scan
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access
from kernelwright.agent.builtin.scheduling.passes import Stage, reads
from kernelwright.kernelbench.free_sizes.size import ceiling, divides, is_free

_WINDOW = 64  # elements of a window whose loop is unrolled
_UNDER_WAY = 8  # loads that a thread has under way where few blocks have long rows


class CudaFlatEmitter(CudaEmitter):
    """Kernels without rows: the elements of a thread lie as far apart as a block has threads."""

    index = "i"

    @property
    def blocks(self) -> int:
        return ceiling(self.plan.region.space.numel, self.knobs.threads * self.knobs.each)

    @property
    def own_elements(self) -> int:
        return self.knobs.each

    @property
    def loop_style(self) -> str:
        each = self.knobs.each
        return f"{each} for each thread" if each > 1 else "one for each thread"

    def constants(self) -> None:
        knobs = self.knobs
        each = {"EACH": knobs.each} if knobs.each > 1 else {}
        self.define_sizes(NUMEL=self.plan.region.space.numel, THREADS=knobs.threads, **each)

    def rows(self, block: str) -> None:
        plan, out, each = self.plan, self.out, self.knobs.each
        first = "first" if each > 1 else "i"
        number = f"static_cast<{self.whole}>({block})" if self.far and block == "blockIdx.x" else block
        size = "(THREADS * EACH)" if each > 1 else "THREADS"
        out.add(f"const {self.whole} {first} = {number} * {size} + threadIdx.x;")
        steps = plan.region.recurrence
        if steps is not None:
            self.declare_kept(list(plan.carried))
            out.open(f"for (int step = 0; step < {steps.steps}; ++step)")
        for access in dict.fromkeys([*plan.accesses.values(), *map(plan.output, plan.outputs)]):
            self.names.setdefault(access, self.pointers[access.base])
        for stage in plan.stages:
            if stage.has_pass:
                self.one_pass(stage)
                self.kept |= set(stage.keeps)
        if steps is not None:
            out.close()

    def open_elements(self, stage: Stage) -> int:
        out, each = self.out, self.knobs.each
        braces = 0
        if each > 1:
            out.add("#pragma unroll")
            out.open("for (int k = 0; k < EACH; ++k)")
            out.add(f"const {self.whole} i = first + k * THREADS;")
            braces += 1
        if not divides(self.knobs.threads * each, self.plan.region.space.numel):
            out.open("if (i < NUMEL)")
            braces += 1
        return braces

    def element_terms(self, access: Access) -> list[str]:
        return [
            *self.outside(access, range(len(self.plan.sizes)), "i"),
            times("step", access.move),
            access.begin,
        ]

    def joined(self, text: str, ctype: str, op: str) -> str:
        raise AssertionError("there are no rows")

    @property
    def absent(self) -> str:
        return ""


class CudaRowEmitter(CudaEmitter):
    """A block works on some rows; LANES of its threads share the elements of each.

    Where neighbours in memory are elements of a row, the threads of a row are neighbours; where they are
    elements of neighbouring rows, those are.
    """

    @property
    def across(self) -> bool:
        """True if the threads of a row are neighbours."""
        return self.plan.mode == "rows"

    @property
    def lanes(self) -> int:
        return self.knobs.threads // self.knobs.rows

    @property
    def blocks(self) -> int:
        return ceiling(self.plan.rows, self.knobs.rows)

    @property
    def own_elements(self) -> int:
        return ceiling(self.plan.row_length, self.lanes)

    @property
    def loop_style(self) -> str:
        threads = f"{self.lanes} threads for each" if self.lanes > 1 else "a thread for each"
        passes = self.plan.passes.removesuffix(" over each")
        return f"{threads}, {'which hold it in registers' if self.knobs.held else passes}"

    @property
    def absent(self) -> str:
        return "" if divides(self.knobs.rows, self.plan.rows) else "row < ROWS"

    @property
    def columns(self) -> str:
        """Number of elements in a thread's row, as an expression."""
        return "columns" if self.absent else "COLUMNS"

    @property
    def first_of_row(self) -> str:
        return "lane == 0" if self.lanes > 1 else ""

    @cached_property
    def outer_axes(self) -> list[int]:
        return [axis for axis, inside in enumerate(self.plan.inner) if not inside]

    @cached_property
    def inner_axes(self) -> list[int]:
        return [axis for axis, inside in enumerate(self.plan.inner) if inside]

    def constants(self) -> None:
        plan, knobs = self.plan, self.knobs
        wide = {} if self.across else {"WIDE": knobs.rows}
        each = {"EACH": knobs.each} if knobs.held and knobs.each > 1 else {}
        self.define_sizes(ROWS=plan.rows, COLUMNS=plan.row_length, LANES=self.lanes, **wide, **each)

    def rows(self, block: str) -> None:
        plan, out = self.plan, self.out
        self.place_threads(block)
        if self.absent:
            out.add(f"const {self.whole} columns = {self.absent} ? COLUMNS : 0;")
        self.hold()
        steps = plan.region.recurrence
        if steps is not None:
            self.declare_kept(list(plan.carried))
            out.open(f"for (int step = 0; step < {steps.steps}; ++step)")
        for access in dict.fromkeys(plan.accesses.values()):
            if access.varies:
                self.row_pointer(access)
        for name in plan.outputs:
            if plan.level(name) == "element":
                self.row_pointer(plan.output(name))
        self.declare_kept([name for name in plan.kept if name not in plan.carried])
        for stage in plan.stages:
            self.row_statements(stage)
            if stage.has_pass:
                self.one_pass(stage)
                if self.knobs.held:
                    self.held |= self.reread & set(self.element_accesses(stage.in_pass))
            self.kept |= set(stage.keeps)
        self.store_rows()
        for name in plan.carried:
            if plan.level(name) == "row":
                out.add(f"{self.kept_name(name)}[0] = {self.statements[name]};")
        for reduction in plan.totals:
            if reads(reduction, plan.region)[0][1] == "row":
                self.add_rows(reduction)
        if steps is not None:
            out.close()

    def place_threads(self, block: str) -> None:
        """Define the row of a thread and its place among the threads of that row."""
        out, rows = self.out, self.knobs.rows
        number = f"static_cast<{self.whole}>({block})" if self.far and block == "blockIdx.x" else block
        row, lane = ("/", "%") if self.across else ("%", "/")
        size = "LANES" if self.across else "WIDE"
        if rows == 1:
            out.add(f"const {self.whole} row = {number};")
            lane_text = "threadIdx.x"
        elif self.lanes == 1:
            out.add(f"const {self.whole} row = {number} * {rows} + threadIdx.x;")
            lane_text = "0"
        else:
            out.add(f"const {self.whole} row = {number} * {rows} + threadIdx.x {row} {size};")
            lane_text = f"threadIdx.x {lane} {size}"
        if self.lanes > 1:
            out.add(f"const int lane = {lane_text};")

    def hold(self) -> None:
        """Declare registers for what several passes read."""
        if not self.knobs.held:
            return
        passes = [set(self.element_accesses(s.in_pass)) for s in self.plan.stages if s.has_pass]
        several = {a for one in passes for a in one if sum(a in other for other in passes) > 1}
        self.reread = frozenset(a for a in several if self.varies_in_row(a) and not a.table and not a.move)
        for access in (a for a in dict.fromkeys(self.plan.accesses.values()) if a in self.reread):
            name = self.elements[access] = self.fresh(f"{self.pointers[access.base]}_value")
            each = "EACH" if self.knobs.each > 1 else "1"
            self.out.add(f"{self.vocabulary.value[access.dtype]} {name}s[{each}];")

    def row_pointer(self, access: Access) -> None:
        """Define a pointer to the row's elements, or the value where the whole row reads the same one."""
        pointer = self.pointers[access.base]
        whole = f"row * {self.plan.row_length}"
        terms = self.outside(access, self.outer_axes, "row")
        terms = ["row * COLUMNS" if term == whole else term for term in terms]
        offset = total([*terms, times("step", access.move), access.begin])
        if self.at_hand(access):
            self.load_value(access, offset, self.absent)
        elif not offset:
            self.names[access] = pointer
        else:
            self.names[access] = self.fresh(f"{pointer}_row")
            const = "" if access.base in self.plan.outputs else "const "
            self.out.add(f"{const}{STORAGE[access.dtype]}* {self.names[access]} = {pointer} + {offset};")

    def at_hand(self, access: Access) -> bool:
        return not self.varies_in_row(access) and access.base not in self.plan.outputs

    def element_terms(self, access: Access) -> list[str]:
        return self.outside(access, self.inner_axes, "j")

    def row_statements(self, stage: Stage) -> None:
        for statement in stage.row:
            if isinstance(statement, Reduce):
                self.pick(statement, self.columns, set())
            elif isinstance(statement, Compute):
                self.define(statement, "row", self.names)

    def store_rows(self) -> None:
        for name in self.plan.outputs:
            if self.plan.level(name) != "row":
                continue
            access = self.plan.output(name)
            terms = self.outside(access, self.outer_axes, "row")
            where = total([*terms, times("step", access.move), access.begin]) or "0"
            text = f"{self.pointers[name]}[{where}] = {self.stored(name, self.statements[name])};"
            condition = " && ".join(c for c in (self.first_of_row, self.absent) if c)
            self.out.add(f"if ({condition}) {text}" if condition else text)

    # The loop of a pass.

    def open_elements(self, stage: Stage) -> int:
        out, braces = self.out, 1
        length, lanes, held = self.plan.row_length, self.lanes, self.knobs.held
        lane = "lane" if lanes > 1 else "0"
        whole = divides(lanes, length) and not self.absent
        conditions: list[str] = []
        if held and self.knobs.each > 1:
            out.add("#pragma unroll")
            out.open("for (int k = 0; k < EACH; ++k)")
            out.add(f"const {self.whole} j = {'lane + k * LANES' if lanes > 1 else 'k'};")
            conditions = [] if whole else [f"j < {self.columns}"]
        elif held:
            out.open("")
            out.add(f"const {self.whole} j = {lane};")
            conditions = [] if whole else [f"j < {self.columns}"]
        elif self.predicated:
            out.open(f"for ({self.whole} start = 0; start < COLUMNS; start += LANES)")
            out.add(f"const {self.whole} j = start + lane;")
            conditions = [f"j < {self.columns}"]
        else:
            step, end = "j += LANES" if lanes > 1 else "++j", self.columns
            if not is_free(self.blocks, self.own_elements) and self.blocks < FILLING < self.own_elements:
                out.add(f"#pragma unroll {_UNDER_WAY}")
            elif self.windows:  # so that places within a window are constants
                out.add("#pragma unroll")
                end, conditions = "COLUMNS", [self.absent] if self.absent else []
            out.open(f"for ({self.whole} j = {lane}; j < {end}; {step})")
        conditions += self.clips()
        if self.predicated:
            out.add(f"const bool inside = {' && '.join(conditions) or 'true'};")
        elif conditions:
            out.open(f"if ({' && '.join(conditions)})")
            braces += 1
        return braces

    @property
    def windows(self) -> bool:
        """True if each thread has a row of few elements that lie along several axes."""
        length = self.plan.row_length
        several = sum(self.plan.sizes[axis] > 1 for axis in self.inner_axes) > 1
        return self.lanes == 1 and not is_free(length) and length <= _WINDOW and several

    def clips(self) -> list[str]:
        """Return the conditions that an element of a window exists, after computing its coordinates."""
        conditions: list[str] = []
        for windows, elements, clip in self.plan.clips():
            place = [
                *self.coordinate(windows, self.outer_axes, "row", clip.stride),
                *self.coordinate(elements, self.inner_axes, "j", clip.dilation),
            ]
            text = total(place) or "0"
            text = f"{text} - {clip.padding}" if clip.padding else text
            name = f"place_{len(conditions) // 2}"
            self.out.add(f"const {self.whole} {name} = {text};")
            conditions += [f"{name} >= 0", f"{name} < {clip.size}"]
        return conditions

    def coordinate(self, axis: int, axes: list[int], variable: str, scale: int) -> list[str]:
        """Return the index along one of the axes, times a number."""
        strides = tuple(scale if other == axis else 0 for other in range(len(self.plan.sizes)))
        return self.outside(Access("", "", strides, 0), axes, variable)

    # What the threads of a row do together.

    def joined(self, text: str, ctype: str, op: str) -> str:
        if self.lanes == 1:
            return text
        function = "across_lanes<LANES>" if self.across else "down_lanes<WIDE, LANES>"
        return f"{function}({text}, {self.join_function(op, ctype)})"

    def together(self, scan: Scan) -> bool:
        return self.lanes > 1

    def scan(self, statement: Scan, addresses: Mapping[Access, str]) -> None:
        if not self.together(statement):
            super().scan(statement, addresses)
            return
        out, ctype, op = self.out, self.scan_type(statement), statement.op
        running, name = self.running(statement), self.name(statement)
        value = self.operand(statement.operand, "element", ctype, addresses)
        out.add(f"{ctype} {name}_total;")
        value = f"inside ? {value} : {self.initial(op, ctype)}"
        join = self.join_function(op, ctype)
        out.add(f"const {ctype} {name}_lanes = scan_lanes<LANES>({value}, {join}, {name}_total);")
        self.scanned(statement, self.update(op, ctype, running, f"{name}_lanes"))
        out.add(f"{running} = {self.update(op, ctype, running, f'{name}_total')};")
