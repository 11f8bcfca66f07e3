"""Columns in C++: kernels whose vector loop runs across rows, with one row in each SIMD lane.

softmax(x, 1) with x of [16, 64, 512] has 8192 columns of 64 elements, which lie 512 floats apart. A thread
takes 256 neighbouring columns at a time; values of the row level are arrays of one number for each of them:

    constexpr int64_t WIDTH = 512, BLOCK = 256;
    alignas(64) float exp_kept[64 * BLOCK];
    alignas(64) float sum_1[BLOCK];
    for (int64_t j = 0; j < 64; ++j) {
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            const float sub = x_row[j * 512 + i] - amax[i];
            const float exp = exp_nonpositive_f32(sub);
            exp_kept[(j) * BLOCK + i] = exp;
            sum_1[i] = sum_1[i] + exp;
        }
    }

The inner loop reads 256 adjacent floats, so it needs no gather. `x.sum(0)` with x of
[65536, 64] has few columns, and long ones: there the 65,536 rows are cut into `PARTS`, threads sum 2048 rows
each, and the parts are added in order, so that the result does not depend on the number of threads.
"""

import math
from collections.abc import Mapping, Sequence

from kernelwright.agent.builtin.codegen.c_like import Element
from kernelwright.agent.builtin.codegen.cpp.emit import CppEmitter
from kernelwright.agent.builtin.codegen.cpp.rows import LOOP_VARIABLES
from kernelwright.agent.builtin.codegen.cpp.types import STORAGE, VALUE
from kernelwright.agent.builtin.ir.program import Clip, Compute, Reduce, Scan
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access
from kernelwright.agent.builtin.scheduling.passes import Stage, reads
from kernelwright.kernelbench.free_sizes.size import is_free

# Both chosen by hand.
SUM_PERIOD = 256  # elements a lane sums in float before they go to a double
PARTS = 32  # parts that the elements of a row are cut into where threads share them


class ColumnEmitter(CppEmitter):
    """Values of the row level are arrays of BLOCK lanes, and so are the rows of kept values.

    Where there are few columns for many elements in each, threads share the elements: each of PARTS is
    reduced apart, along memory, and the parts are put together in order, whatever the number of threads.
    """

    in_part = False  # whether what is written is carried out for each part

    @property
    def width(self) -> int:
        return self.plan.sizes[-1]

    @property
    def block(self) -> int:
        return self.knobs.block if is_free(self.width) else min(self.knobs.block, self.width)

    @property
    def row_count(self) -> int:
        return self.plan.rows // self.width * -(-self.width // self.block)

    def constants(self) -> None:
        out, outer = self.out, self.plan.rows // self.width
        self.define_sizes(WIDTH=self.width, BLOCK=self.block)
        out.add(f"{self.kind(self.width)} int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;")
        out.add(f"{self.kind(self.width, outer)} int64_t ROWS = {outer} * BLOCKS;")
        if self.knobs.parts:
            out.add(f"constexpr int64_t PARTS = {PARTS};")
        self.chunks()

    def open_rows(self) -> None:
        if self.knobs.parts:
            self.out.open("for (int64_t row = 0; row < ROWS; ++row)")
        else:
            super().open_rows()

    def open_row(self) -> None:
        if self.plan.rows > self.width:
            self.out.add("const int64_t outer = row / BLOCKS;")
        self.out.add("const int64_t first = row % BLOCKS * BLOCK;")
        self.out.add("const int64_t n = std::min(BLOCK, WIDTH - first);")

    def row_terms(self, access: Access) -> list[str]:
        axes = [axis for axis, inside in enumerate(self.plan.inner[:-1]) if not inside]
        return [*self.outside(access, axes, "outer"), times("first", access.strides[-1])]

    def varies_in_row(self, access: Access) -> bool:
        inside = (*self.plan.inner[:-1], True)
        return any(stride for stride, within in zip(access.strides, inside, strict=True) if within)

    def value(self, name: str) -> str:
        text = self.statements[name]
        return f"{text}[i]" if self.plan.level(name) == "row" else text

    def reduced_name(self, reduction: Reduce) -> str:
        name = super().reduced_name(reduction)
        return f"{name}_part" if self.in_part else name

    def reduced_value(self, reduction: Reduce) -> str:
        return f"{self.reduced_name(reduction)}[i]"

    def outputs_and_buffers(self) -> None:
        plan, out = self.plan, self.out
        for name in plan.outputs:
            if plan.level(name) != "scalar":
                self.row_pointer(self.plan.output(name))
        self.carried_rows()
        for name in plan.kept:
            if name not in plan.carried:
                out.add(f"alignas(64) {self.ctype(name)} {self.kept_name(name)}[{self.row_size(name)}];")
        for statement in plan.region.statements:
            if plan.level(statement.name) == "row":
                out.add(f"alignas(64) {self.ctype(statement.name)} {self.name(statement)}[BLOCK];")

    def row_addresses(self, statement: Compute | Reduce) -> dict[Access, str]:
        found = {}
        for view, level in reads(statement, self.plan.region):
            access = self.plan.access(view, level)
            if access is not None:
                name, lane = self.names[access], times("i", access.strides[-1])
                found[access] = self.element(access, name, [lane]) if lane else name
        return found

    def row_statements(self, stage: Stage) -> None:
        if not stage.row:
            return
        self.open_lanes()
        for statement in stage.row:
            assert isinstance(statement, Compute)  # a pick needs rows
            text = self.expression(statement, "row", self.row_addresses(statement))
            self.out.add(f"{self.name(statement)}[i] = {text};")
        self.out.close()

    def open_lanes(self, begin: str = "0", end: str = "n") -> None:
        self.out.add("#pragma omp simd")
        self.out.open(f"for (int64_t i = {begin}; i < {end}; ++i)")

    def clipped_lanes(self, variable: str, clip: Clip) -> tuple[str, str]:
        """Return the first of the lanes whose windows have this element, and the one after the last."""
        place = times(variable, clip.dilation)
        begin = f"({clip.padding + clip.stride - 1} - {place}) / {clip.stride} - first"
        end = f"({clip.size - 1 + clip.padding + clip.stride} - {place}) / {clip.stride} - first"
        self.out.add(f"const int64_t begin = std::max<int64_t>(0, {begin}), end = std::min(n, {end});")
        return "begin", "end"

    def skip_outside(self, variable: str, windows: int, clip: Clip) -> None:
        """Pass over elements that the windows of this row do not have."""
        axes = [axis for axis, inside in enumerate(self.plan.inner[:-1]) if not inside]
        further_in = math.prod(self.plan.sizes[axis] for axis in axes if axis > windows)
        number = f"outer / {further_in}" if further_in > 1 else "outer"
        if windows != axes[0]:
            number = f"{number} % {self.plan.sizes[windows]}"
        at = f"{times(f'({number})', clip.stride)} + {times(variable, clip.dilation)} - {clip.padding}"
        self.out.add(f"const int64_t {variable}_at = {at};")
        self.out.add(f"if ({variable}_at < 0 || {variable}_at >= {clip.size}) continue;")

    def store_row_outputs(self) -> None:
        rows = [name for name in self.plan.outputs if self.plan.level(name) == "row"]
        if not rows:
            return
        self.open_lanes()
        for name in rows:
            access = self.plan.output(name)
            target = f"{self.names[access]}[{times('i', access.strides[-1]) or '0'}]"
            self.out.add(f"{target} = {self.stored(name, self.value(name))};")
        self.out.close()

    def hand_on(self) -> None:
        rows = [name for name in self.plan.carried if self.plan.level(name) == "row"]
        if rows:
            self.open_lanes()
            for name in rows:
                self.out.add(f"{self.kept_name(name)}[i] = {self.value(name)};")
            self.out.close()

    def row_size(self, name: str) -> str:
        return f"{self.plan.row_length} * BLOCK" if self.plan.level(name) == "element" else "BLOCK"

    @property
    def row_place(self) -> str:
        return "i"

    def add_to_part(self, reduction: Reduce) -> None:
        view, level = reads(reduction, self.plan.region)[0]
        if level == "element":
            value = self.reduced_value(reduction)
        else:
            value = self.operand(view, "row", self.ctype(reduction.name), self.row_addresses(reduction))
        self.out.add(f"for (int64_t i = 0; i < n; ++i) {self.part_update(reduction, value)}")

    def one_pass(self, stage: Stage) -> None:
        out = self.out
        accesses = self.pass_accesses(stage)
        loops = self.plan.nest(accesses, inside=True)
        summed = [r for r in stage.reductions if self.sums_in_periods(r)]
        if self.knobs.parts:
            self.open_parts(stage)
        for reduction in stage.reductions:
            self.start_lanes(reduction, reduction in summed)
        for statement in stage.elements:
            if isinstance(statement, Scan):
                self.start_scan(statement)
        variables = LOOP_VARIABLES[: len(loops)]
        lanes = ("0", "n")
        inside = [axis for axis, within in enumerate(self.plan.inner) if within]
        for number, (variable, loop) in enumerate(zip(variables, loops, strict=True)):
            begin, end = "0", str(loop.size)
            if self.knobs.parts and number == 0:
                begin, end = f"part * {loop.size} / PARTS", f"(part + 1) * {loop.size} / PARTS"
            out.open(f"for (int64_t {variable} = {begin}; {variable} < {end}; ++{variable})")
            for windows, elements, clip in self.plan.clips():
                if elements != inside[number]:
                    continue
                if windows == len(self.plan.sizes) - 1:
                    lanes = self.clipped_lanes(variable, clip)
                else:
                    self.skip_outside(variable, windows, clip)
        outputs = {self.plan.output(name): name for name in stage.stores}
        addresses: dict[Access, str] = {}
        stores: dict[str, str] = {}
        streamed: dict[str, str] = {}  # blocks, and where they go
        for access in accesses:
            terms = [times(v, loop.strides[access]) for v, loop in zip(variables, loops, strict=True)]
            name = self.names[access]
            if access in outputs and self.knobs.streaming:
                block = f"{self.statements[outputs[access]]}_block"
                out.add(f"alignas(64) {STORAGE[access.dtype]} {block}[BLOCK];")
                stores[outputs[access]], streamed[block] = f"{block}[i]", total([name, *terms])
            elif access in outputs:
                stores[outputs[access]] = f"{name}[{total([*terms, times('i', access.strides[-1])])}]"
            elif not self.varies_in_row(access):
                addresses[access] = name
            elif access.strides[-1] or access.table:
                addresses[access] = self.element(access, name, [*terms, times("i", access.strides[-1])])
            else:
                addresses[access] = f"{name}_{variables[-1]}"
                text = self.loaded(access, f"{name}[{total(terms)}]")
                out.add(f"const {VALUE[access.dtype]} {addresses[access]} = {text};")
        place = total([times(v, loop.strides[None]) for v, loop in zip(variables, loops, strict=True)])
        self.open_lanes(*lanes)
        self.element_body(stage, addresses, stores, Element(place, f"({place}) * BLOCK + i"))
        out.close()
        for block, target in streamed.items():
            out.add(f"stream_bytes({target}, {block}, n * sizeof(*{block}));")
        if summed:
            out.open(f"if (({place}) % {SUM_PERIOD} == {SUM_PERIOD - 1})")
            for reduction in summed:
                self.flush(reduction)
            out.close()
        out.close(len(loops))
        for reduction in summed:
            self.flush(reduction)
        if self.knobs.parts:
            self.close_parts(stage, summed)
            return
        for reduction in summed:
            name = self.reduced_name(reduction)
            out.add(f"for (int64_t i = 0; i < n; ++i) {name}[i] = static_cast<float>({name}_total[i]);")

    def open_parts(self, stage: Stage) -> None:
        for reduction in stage.reductions:
            ctype = self.part_type(reduction)
            self.out.add(f"alignas(64) {ctype} {self.reduced_name(reduction)}_parts[PARTS][BLOCK];")
        self.out.add("#pragma omp parallel for schedule(static)")
        self.out.open("for (int64_t part = 0; part < PARTS; ++part)")
        self.in_part = True

    def close_parts(self, stage: Stage, summed: Sequence[Reduce]) -> None:
        out = self.out
        found = {r: f"{self.reduced_name(r)}{'_total' if r in summed else ''}[i]" for r in stage.reductions}
        self.in_part = False
        for reduction, value in found.items():
            name = self.reduced_name(reduction)
            out.add(f"for (int64_t i = 0; i < n; ++i) {name}_parts[part][i] = {value};")
        out.close()
        for reduction in stage.reductions:
            name, ctype = self.reduced_name(reduction), self.part_type(reduction)
            self.open_lanes()
            out.add(f"{ctype} total = {name}_parts[0][i];")
            update = self.update(reduction.op, ctype, "total", f"{name}_parts[part][i]")
            out.add(f"for (int64_t part = 1; part < PARTS; ++part) total = {update};")
            result = self.ctype(reduction.name)
            out.add(f"{name}[i] = {'total' if ctype == result else f'static_cast<{result}>(total)'};")
            out.close()

    def start_scan(self, statement: Scan) -> None:
        ctype, name = self.scan_type(statement), self.name(statement)
        initial = self.initial(statement.op, ctype)
        self.out.add(f"alignas(64) {ctype} {name}_running[BLOCK];")
        self.out.add(f"for (int64_t i = 0; i < n; ++i) {name}_running[i] = {initial};")

    def scan(self, statement: Scan, addresses: Mapping[Access, str]) -> None:
        running = f"{self.name(statement)}_running[i]"
        self.running_update(statement, running, addresses)
        self.running_value(statement, running)

    def sums_in_periods(self, reduction: Reduce) -> bool:
        is_float = self.ctype(reduction.name) == "float"
        long = is_free(self.plan.row_length) or self.plan.row_length > SUM_PERIOD
        return reduction.op == "sum" and is_float and long

    def start_lanes(self, reduction: Reduce, summed: bool) -> None:
        ctype, name = self.ctype(reduction.name), self.reduced_name(reduction)
        if self.in_part or self.plan.level(reduction.name) == "scalar":
            self.out.add(f"alignas(64) {ctype} {name}[BLOCK];")
        if summed:
            self.out.add(f"alignas(64) double {name}_total[BLOCK];")
            self.out.add(f"for (int64_t i = 0; i < n; ++i) {name}_total[i] = 0.0;")
        initial = self.initial(reduction.op, ctype)
        self.out.add(f"for (int64_t i = 0; i < n; ++i) {name}[i] = {initial};")

    def flush(self, reduction: Reduce) -> None:
        name = self.reduced_name(reduction)
        self.open_lanes()
        self.out.add(f"{name}_total[i] += {name}[i];")
        self.out.add(f"{name}[i] = 0.0f;")
        self.out.close()
