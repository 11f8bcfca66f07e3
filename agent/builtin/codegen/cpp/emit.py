"""The C++ text of one planned kernel, without its passes: names, addresses, expressions, rows, totals.

`RowEmitter` and `ColumnEmitter` add the passes for their shape of loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.agent.builtin.codegen.backend import Kernel, named
from kernelwright.agent.builtin.codegen.c_like import CLikeCodegen, Element
from kernelwright.agent.builtin.codegen.cpp.types import CPP, STORAGE, VALUE
from kernelwright.agent.builtin.ir.program import Compute, Program, Reduce, Scan
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.launches import SMALL
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.agent.builtin.scheduling.online import Online
from kernelwright.agent.builtin.scheduling.passes import Stage, reads
from kernelwright.kernelbench.free_sizes.size import is_free

MODEST = 4  # additions per element below which all elements take about as long; chosen by hand
CHUNKS = 256  # partial results of a reduction to a scalar; each is found by one thread, row by row


@dataclass(frozen=True)
class CppKnobs:
    """The schedule of one kernel, in its own types."""

    block: int
    streaming: bool
    parallel: bool
    prefetch: bool
    parts: bool = False  # threads share the elements of a column
    online: Online | None = None  # two passes over a row that are one
    in_place: frozenset[str] = frozenset()  # outputs written over an input


class CppEmitter(CLikeCodegen):
    vocabulary = CPP
    whole = "int64_t"

    def __init__(self, plan: Plan, program: Program, knobs: CppKnobs, pointers: Mapping[str, str]) -> None:
        super().__init__(plan, program, pointers)
        self.knobs = knobs

    def kernel(self, name: str) -> Kernel:
        self.load_scalars()
        self.constants()
        for reduction in self.plan.totals:
            self.out.add(f"{self.part_type(reduction)} {self.name(reduction)}_parts[CHUNKS];")
        self.open_rows()
        self.open_row()
        for access in dict.fromkeys(self.plan.accesses.values()):
            if access.varies:
                self.row_pointer(access)
        self.outputs_and_buffers()
        self.passes()
        self.store_row_outputs()
        self.hand_on()
        for reduction in self.plan.totals:
            self.add_to_part(reduction)
        self.close_rows()
        self.finish()
        return self.written(name)

    def written(self, name: str) -> Kernel:
        """Return the kernel of the lines so far."""
        lines, parallel = tuple(self.out.lines), self.knobs.parallel
        free = named(self.program.graph.free, lines)
        parameters = (*self.parameters(), *(f"int64_t {name}" for name in free))
        return Kernel(name, parameters, lines, self.plan.passes, parallel=parallel, free=free)

    def kind(self, *sizes: int) -> str:
        """Return how a number is declared that is computed from these."""
        return "const" if is_free(*sizes) else "constexpr"

    def parameters(self) -> tuple[str, ...]:
        pointers = (
            f"{'' if base in self.plan.outputs else 'const '}{STORAGE[self.program.dtypes[base]]}* {pointer}"
            for base, pointer in self.pointers.items()
        )
        return (*pointers, *(f"int64_t {at}" for at in self.plan.arguments))

    def passes(self) -> None:
        for stage in self.plan.stages:
            self.row_statements(stage)
            if stage.has_pass:
                self.one_pass(stage)
            self.kept |= set(stage.keeps)

    # What differs between the shapes of loop.

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Iterations of the loop over rows, or over blocks of them."""

    @abstractmethod
    def constants(self) -> None: ...

    @abstractmethod
    def open_row(self) -> None:
        """Define the constants of a row from the loop variable `row`."""

    @abstractmethod
    def outputs_and_buffers(self) -> None: ...

    @abstractmethod
    def row_statements(self, stage: Stage) -> None: ...

    @abstractmethod
    def one_pass(self, stage: Stage) -> None: ...

    @abstractmethod
    def store_row_outputs(self) -> None: ...

    @abstractmethod
    def row_terms(self, access: Access) -> list[str]:
        """Return the offset of a row in an external value, as terms of a sum."""

    @abstractmethod
    def add_to_part(self, reduction: Reduce) -> None:
        """Add a row's share of a scalar to the part of its chunk."""

    def reduced_name(self, reduction: Reduce) -> str:
        """Variable that a pass reduces into; a scalar's share of one row has a name of its own."""
        name = self.name(reduction)
        return f"{name}_row" if self.plan.level(reduction.name) == "scalar" else name

    # Addresses and expressions.

    def row_pointer(self, access: Access) -> None:
        """Define a pointer to the row's elements, or the value where the whole row reads the same one."""
        pointer = self.pointers[access.base]
        moved = times("step", access.move)
        offset = total([*self.row_terms(access), moved, access.begin])
        several = self.varies_in_row(access) or access.base in self.plan.results
        if several and not offset:
            self.names[access] = pointer
        elif several:
            self.names[access] = self.fresh(f"{pointer}_row")
            const = "" if access.base in self.plan.outputs else "const "
            self.out.add(f"{const}{STORAGE[access.dtype]}* {self.names[access]} = {pointer} + {offset};")
        else:
            self.load_value(access, offset)

    def load_value(self, access: Access, offset: str) -> None:
        if access.table:
            self.names[access] = self.element(access, self.pointers[access.base], [offset])
            return
        self.names[access] = self.fresh(f"{self.pointers[access.base]}_value")
        text = self.loaded(access, f"{self.pointers[access.base]}[{offset or '0'}]")
        self.out.add(f"const {VALUE[access.dtype]} {self.names[access]} = {text};")

    def load_scalars(self) -> None:
        """Values that never vary are read once, before the rows."""
        for access in dict.fromkeys(self.plan.accesses.values()):
            if not access.varies:
                self.load_value(access, access.begin)

    def pass_accesses(self, stage: Stage) -> list[Access]:
        """External values a pass reads per element, then its outputs."""
        found: dict[Access, None] = {}
        for statement in stage.in_pass:
            for view, level in reads(statement, self.plan.region):
                access = self.plan.access(view, level)
                if access is not None and level == "element":
                    found[access] = None
        return [*found, *(self.plan.output(name) for name in stage.stores)]

    def element_body(
        self,
        stage: Stage,
        addresses: dict[Access, str],
        stores: dict[str, str],
        place: Element,
    ) -> None:
        """Write the inside of a pass's vector loop; `stores` says where each stored value goes."""
        out = self.out
        self.element_values(stage, addresses, place)
        for reduction in stage.reductions:
            value = self.operand(reduction.operand, "element", self.ctype(reduction.name), addresses)
            self.accumulate(reduction, value)
        for name in stage.stores:
            out.add(f"{stores[name]} = {self.stored(name, self.statements[name])};")

    def running_update(self, statement: Scan, running: str, addresses: Mapping[Access, str]) -> None:
        ctype = self.scan_type(statement)
        value = self.operand(statement.operand, "element", ctype, addresses)
        self.out.add(f"{running} = {self.update(statement.op, ctype, running, value)};")

    def running_value(self, statement: Scan, running: str) -> None:
        result = self.ctype(statement.name)
        text = running if result == self.scan_type(statement) else f"static_cast<{result}>({running})"
        self.out.add(f"const {result} {self.name(statement)} = {text};")

    def accumulate(self, reduction: Reduce, value: str) -> None:
        """Add one element of a row to what a pass reduces."""
        target = self.reduced_value(reduction)
        update = self.update(reduction.op, self.ctype(reduction.name), target, value)
        self.out.add(f"{target} = {update};")

    def reduced_value(self, reduction: Reduce) -> str:
        return self.reduced_name(reduction)

    # The loop over rows, and what follows it.

    def open_rows(self) -> None:
        out, totals = self.out, self.plan.totals
        if self.plan.region.recurrence is not None:
            self.open_steps(self.plan.region.recurrence.steps)
            return
        self.open_threads()
        if not totals:
            out.open("for (int64_t row = 0; row < ROWS; ++row)")
            return
        out.open("for (int64_t chunk = 0; chunk < CHUNKS; ++chunk)")
        for reduction in totals:
            ctype = self.part_type(reduction)
            out.add(f"{ctype} {self.name(reduction)}_part = {self.initial(reduction.op, ctype)};")
        out.open("for (int64_t row = chunk * ROWS / CHUNKS; row < (chunk + 1) * ROWS / CHUNKS; ++row)")

    def open_threads(self) -> None:
        """Threads share the loop that follows."""
        numel = self.plan.region.space.numel
        least = SMALL // max(1, self.plan.cost // MODEST)
        enough = f" if ({numel!r} >= {least})" if is_free(numel) else ""
        if self.knobs.parallel and self.knobs.streaming:
            self.out.add(f"#pragma omp parallel{enough}")
            self.out.open("")
            self.out.add("#pragma omp for schedule(static) nowait")
        elif self.knobs.parallel:
            self.out.add(f"#pragma omp parallel for schedule(static){enough}")

    def close_threads(self) -> None:
        """Write what follows the loop over rows: a fence, after which all threads see what was streamed."""
        if self.knobs.streaming:
            self.out.add("stream_fence();")
            if self.knobs.parallel:
                self.out.close()

    def open_steps(self, steps: int) -> None:
        """Parts of the rows, each of them step by step."""
        out, at_once = self.out, self.plan.rows_at_once
        if self.knobs.parallel:
            out.add("#pragma omp parallel for schedule(static)")
        parts = str(-(-self.row_count // at_once))
        if is_free(self.plan.region.space.numel):
            parts = "ROWS" if at_once == 1 else f"(ROWS + {at_once - 1}) / {at_once}"
        out.open(f"for (int64_t part = 0; part < {parts}; ++part)")
        for name in self.plan.carried:
            size = f"{at_once} * {self.row_size(name)}" if at_once > 1 else self.row_size(name)
            out.add(f"alignas(64) {self.ctype(name)} {self.carried_name(name)}[{size}];")
        out.open(f"for (int64_t step = 0; step < {steps}; ++step)")
        end = "part + 1" if at_once == 1 else f"std::min<int64_t>(ROWS, (part + 1) * {at_once})"
        first = "part" if at_once == 1 else f"part * {at_once}"
        out.open(f"for (int64_t row = {first}; row < {end}; ++row)")

    def carried_rows(self) -> None:
        """Define pointers to this row's part of the values that are carried from step to step."""
        at_once = self.plan.rows_at_once
        for name in self.plan.carried:
            row = f" + (row - part * {at_once}) * {self.row_size(name)}" if at_once > 1 else ""
            self.out.add(
                f"{self.ctype(name)}* const {self.kept_name(name)} = {self.carried_name(name)}{row};"
            )

    def carried_name(self, name: str) -> str:
        return f"{self.statements[name]}_carried"

    @abstractmethod
    def row_size(self, name: str) -> str:
        """Elements that a value has in a row, or in the lanes of a block of columns."""

    @abstractmethod
    def hand_on(self) -> None:
        """Carries the row's values to the next step. Its elements' have been kept when they were computed."""

    def close_rows(self) -> None:
        out = self.out
        if self.plan.region.recurrence is not None:
            out.close(2)
        out.close()
        if self.plan.totals:
            for reduction in self.plan.totals:
                out.add(f"{self.name(reduction)}_parts[chunk] = {self.name(reduction)}_part;")
            out.close()
        self.close_threads()

    def chunks(self) -> None:
        if self.plan.totals:
            most = CHUNKS if is_free(self.plan.region.space.numel) else min(CHUNKS, self.row_count)
            self.out.add(f"constexpr int64_t CHUNKS = {most};")

    def part_update(self, reduction: Reduce, value: str) -> str:
        part = f"{self.name(reduction)}_part"
        return f"{part} = {self.update(reduction.op, self.part_type(reduction), part, value)};"

    def finish(self) -> None:
        """Scalars: the parts in order, then the scalar statements and outputs."""
        out, plan = self.out, self.plan
        for reduction in plan.totals:
            name, ctype, result = self.name(reduction), self.part_type(reduction), self.ctype(reduction.name)
            out.add(f"{ctype} {name}_total = {name}_parts[0];")
            update = self.update(reduction.op, ctype, f"{name}_total", f"{name}_parts[chunk]")
            out.add(f"for (int64_t chunk = 1; chunk < CHUNKS; ++chunk) {name}_total = {update};")
            value = f"{name}_total" if ctype == result else f"static_cast<{result}>({name}_total)"
            out.add(f"const {result} {name} = {value};")
        for statement in plan.scalars:
            assert isinstance(statement, Compute)
            self.define(statement, "scalar", self.names)
        for name in plan.outputs:
            if plan.level(name) == "scalar":
                out.add(f"{self.pointers[name]}[0] = {self.stored(name, self.statements[name])};")
