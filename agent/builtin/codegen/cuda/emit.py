"""The CUDA C++ text of one planned kernel: loads, statements, stores, totals. Its rows are in `rows.py`.

What a row computes all of its threads compute; what is reduced they reduce together.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.agent.builtin.codegen.backend import named
from kernelwright.agent.builtin.codegen.c_like import BracedLines, CLikeCodegen, Element
from kernelwright.agent.builtin.codegen.cuda.types import CUDA, STORAGE, VALUE
from kernelwright.agent.builtin.codegen.gpu import GridKernel, Parts, taken
from kernelwright.agent.builtin.ir.program import Compute, Fused, Program, Reduce, Scan
from kernelwright.agent.builtin.ir.text import total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.agent.builtin.scheduling.passes import Stage, reads
from kernelwright.kernelbench.free_sizes.size import is_free, is_one

JOINING = 256  # threads that take parts together
LONG = 256  # elements that one thread adds up in float


@dataclass(frozen=True)
class CudaKnobs:
    """The schedule of one kernel, in its own types."""

    threads: int  # of a block
    rows: int = 1  # worked on at once by a block
    each: int = 1  # elements of a row, or of all, that a thread works on; of a row, where it holds them
    held: bool = False  # whether threads hold the elements of their row in registers
    run: int = 0  # neighbouring elements of a row that a thread scans by itself; 0: rows have no such runs
    in_place: frozenset[str] = field(default=frozenset())  # outputs written over an input
    parts: int = 1024  # blocks that find a share each of what is reduced to a scalar


class CudaEmitter(CLikeCodegen):
    vocabulary = CUDA
    index = "j"  # of an element in its row

    def __init__(self, plan: Plan, program: Program, knobs: CudaKnobs, pointers: Mapping[str, str]) -> None:
        super().__init__(plan, program, pointers)
        self.knobs = knobs
        self.held: set[Access] = set()  # what is read and in registers already
        self.elements: dict[Access, str] = {}  # what an element of it is called
        self.scans: set[str] = set()  # running values that are declared
        self.predicated = False  # whether threads without an element go along, for what all do together

    def kernel(self, name: str) -> GridKernel:
        plan, out, totals = self.plan, self.out, self.plan.totals
        several = bool(totals) and (is_free(self.blocks) or self.blocks > 1)
        blocks = self.blocks
        if several:
            blocks = self.knobs.parts if is_free(blocks) else min(blocks, self.knobs.parts)
        self.load_scalars()
        self.constants()
        for reduction in totals:
            ctype = self.part_type(reduction)
            out.add(f"{ctype} {self.name(reduction)}_part = {self.initial(reduction.op, ctype)};")
        if several:
            self.define_sizes(BLOCKS=self.blocks)
            out.open(f"for ({self.whole} block = blockIdx.x; block < BLOCKS; block += gridDim.x)")
        self.rows("block" if several else "blockIdx.x")
        if several:
            out.close()
        if totals:
            self.block_totals(several)
        body, joining = self.out, BracedLines()
        if several:
            self.out = joining
            self.join(blocks)
        elif plan.scalars or totals:
            self.finish("threadIdx.x == 0" if is_one(blocks) else "blockIdx.x == 0 && threadIdx.x == 0")
        free = named(self.program.graph.free, [*body.lines, *joining.lines])
        return GridKernel(
            name,
            (*self.parameters(), *(f"long long {size}" for size in free)),
            tuple(body.lines),
            self.loop_style,
            grid=blocks,
            width=self.knobs.threads,
            parts=self.parts(tuple(joining.lines), free) if several else None,
            free=free,
        )

    def parts(self, body: tuple[str, ...], free: tuple[str, ...]) -> Parts:
        """Return the parts of totals, which a function with this body takes together."""
        totals, accesses = self.plan.totals, dict.fromkeys(self.plan.accesses.values())
        constant = [access for access in accesses if not access.varies]
        names = tuple(f"{self.part_type(total)}* part_{number}" for number, total in enumerate(totals))
        return Parts(
            tuple(map(self.part_dtype, totals)),
            body,
            JOINING,
            taken(self.plan, self.pointers, (accesses, constant), free),
            (names, tuple(f"const {name}" for name in names)),
        )

    def parameters(self) -> tuple[str, ...]:
        # What is written over an input is that input by another name.
        restrict = "" if self.knobs.in_place else " __restrict__"
        pointers = []
        for base, pointer in self.pointers.items():
            const = "" if base in self.plan.outputs else "const "
            pointers.append(f"{const}{STORAGE[self.program.dtypes[base]]}*{restrict} {pointer}")
        return (*pointers, *(f"long long {at}" for at in self.plan.arguments))

    # What differs between the shapes of a block's work.

    @property
    @abstractmethod
    def blocks(self) -> int:
        """Number of blocks of work, each for one thread block, or several for one where there are totals."""

    @property
    @abstractmethod
    def loop_style(self) -> str: ...

    @abstractmethod
    def constants(self) -> None: ...

    @abstractmethod
    def rows(self, block: str) -> None:
        """Write the work of the block of this number."""

    @abstractmethod
    def open_elements(self, stage: Stage) -> int:
        """Open the loop of a pass, up to where an element is there; how many braces that takes."""

    def at_hand(self, access: Access) -> bool:
        """Return True if `names` has the value, or the expression that reads a table, for all elements."""
        return not access.varies

    @abstractmethod
    def element_terms(self, access: Access) -> list[str]:
        """Return the offset of an element from what `names` points to, as terms of a sum."""

    @abstractmethod
    def joined(self, text: str, ctype: str, op: str) -> str:
        """Expression that joins the results of a row's threads."""

    @property
    @abstractmethod
    def absent(self) -> str:
        """Condition that a row exists, where some may not; else empty."""

    @property
    def whole(self) -> str:
        return "long long" if self.far else "int"

    @property
    def far(self) -> bool:
        plan = self.plan
        sizes = [self.program.shapes[access.base] for access in plan.accesses.values()]
        sizes += [self.program.shapes[name] for name in plan.outputs if name in self.program.shapes]
        counts = [plan.region.space.numel, *map(math.prod, sizes)]
        return is_free(*counts) or max(counts) >= 1 << 30

    # Names and values.

    def value(self, name: str) -> str:
        return self.statements[name]

    @property
    def row_place(self) -> str:
        return "0"

    def load_value(self, access: Access, offset: str, there: str = "") -> None:
        """Load a value that does not vary in a row."""
        pointer, ctype = self.pointers[access.base], VALUE[access.dtype]
        if access.table:
            self.names[access] = self.element(access, pointer, [offset])
            return
        self.names[access] = self.fresh(f"{pointer}_value")
        text = self.loaded(access, f"{pointer}[{offset or '0'}]")
        if there:
            text = f"{there} ? {text} : {self.nothing(ctype)}"
        self.out.add(f"const {ctype} {self.names[access]} = {text};")

    def nothing(self, ctype: str) -> str:
        return self.vocabulary.literal(0, ctype)

    def load_scalars(self) -> None:
        """Values that never vary are read once, before the rows."""
        for access in dict.fromkeys(self.plan.accesses.values()):
            if not access.varies:
                self.load_value(access, access.begin)

    def declare_kept(self, names: Sequence[str]) -> None:
        for name in names:
            each = "EACH" if self.plan.level(name) == "element" and self.knobs.each > 1 else "1"
            self.out.add(f"{self.ctype(name)} {self.kept_name(name)}[{each}];")

    # A pass over the elements.

    @property
    def register(self) -> str:
        """Index of an element among the registers of its thread."""
        return "k" if self.knobs.each > 1 else "0"

    def one_pass(self, stage: Stage) -> None:
        out = self.out
        scans = [s for s in stage.elements if isinstance(s, Scan)]
        self.predicated = any(self.together(scan) for scan in scans)
        for reduction in self.row_reductions(stage):
            ctype = self.lane_type(reduction)
            out.add(f"{ctype} {self.lane_name(reduction)} = {self.initial(reduction.op, ctype)};")
        for scan in scans:
            ctype, running = self.scan_type(scan), self.running(scan)
            declared = "" if running in self.scans else f"{ctype} "  # by a pass before that computes it, too
            out.add(f"{declared}{running} = {self.initial(scan.op, ctype)};")
            self.scans.add(running)
        self.elements_of_pass(stage)
        self.predicated = False
        for reduction in self.row_reductions(stage):
            name, ctype = self.lane_name(reduction), self.lane_type(reduction)
            result = self.ctype(reduction.name)
            text = self.joined(name, ctype, reduction.op)
            text = text if ctype == result else f"static_cast<{result}>({text})"
            out.add(f"const {result} {self.name(reduction)} = {text};")

    def elements_of_pass(self, stage: Stage) -> None:
        """Write the loop over elements."""
        braces = self.open_elements(stage)
        self.element_body(stage)
        self.out.close(braces)

    def together(self, scan: Scan) -> bool:
        """Return True if the threads of a row compute a scan together."""
        return False

    def running(self, scan: Scan) -> str:
        return f"{self.name(scan)}_running"

    def row_reductions(self, stage: Stage) -> list[Reduce]:
        return [r for r in stage.reductions if self.plan.level(r.name) != "scalar"]

    def lane_name(self, reduction: Reduce) -> str:
        """Variable of a thread's own result of a reduction."""
        scalar = self.plan.level(reduction.name) == "scalar"
        return f"{self.name(reduction)}_{'part' if scalar else 'own'}"

    def lane_type(self, reduction: Reduce) -> str:
        long = (
            is_free(self.own_elements)
            or self.own_elements > LONG
            or self.plan.level(reduction.name) == "scalar"
        )
        return self.part_type(reduction) if long else self.ctype(reduction.name)

    @property
    @abstractmethod
    def own_elements(self) -> int:
        """Elements of a row that are a thread's."""

    def element_body(self, stage: Stage) -> None:
        out, place = self.out, Element(self.index, self.register)
        addresses = self.load_elements(stage)
        self.element_values(stage, addresses, place)
        if self.predicated and (stage.reductions or stage.stores):
            out.open("if (inside)")
        for reduction in stage.reductions:
            ctype, target = self.lane_type(reduction), self.lane_name(reduction)
            value = self.operand(reduction.operand, "element", ctype, addresses)
            out.add(f"{target} = {self.update(reduction.op, ctype, target, value)};")
        for name in stage.stores:
            access = self.plan.output(name)
            where = total([*self.element_terms(access)]) or "0"
            out.add(f"{self.names[access]}[{where}] = {self.stored(name, self.statements[name])};")
        if self.predicated and (stage.reductions or stage.stores):
            out.close()

    def load_elements(self, stage: Stage) -> dict[Access, str]:
        """Expressions by which a pass reads external values; what it reads of memory is loaded here, once."""
        found: dict[Access, str] = {}
        for access in self.element_accesses(stage.in_pass):
            ctype = VALUE[access.dtype]
            if self.at_hand(access) and not (access.table and self.predicated):
                found[access] = self.names[access]
                continue
            text = self.names[access]
            if not self.at_hand(access):
                text = self.element(access, text, self.element_terms(access))
            if self.predicated:
                text = f"inside ? {text} : {self.nothing(ctype)}"
            if access.table:
                found[access] = f"({text})" if self.predicated else text
                continue
            if access not in self.elements:
                self.elements[access] = self.fresh(f"{self.pointers[access.base]}_value")
            name = self.elements[access]
            if access in self.held:
                found[access] = f"{name}s[{self.register}]"
            elif access in self.reread:
                found[access] = f"{name}s[{self.register}]"
                self.out.add(f"{found[access]} = {text};")
            else:
                found[access] = name
                self.out.add(f"const {ctype} {name} = {text};")
        return found

    reread: frozenset[Access] = frozenset()  # what several passes read, in registers after the first

    def element_accesses(self, statements: Sequence[Fused]) -> list[Access]:
        found = (
            self.plan.access(view, level)
            for statement in statements
            for view, level in reads(statement, self.plan.region)
            if level == "element"
        )
        return [access for access in dict.fromkeys(found) if access is not None]

    def scan(self, statement: Scan, addresses: Mapping[Access, str]) -> None:
        """One by one: a thread has all of the row."""
        ctype, running = self.scan_type(statement), self.running(statement)
        value = self.operand(statement.operand, "element", ctype, addresses)
        self.out.add(f"{running} = {self.update(statement.op, ctype, running, value)};")
        self.scanned(statement, running)

    def scanned(self, statement: Scan, text: str) -> None:
        result = self.ctype(statement.name)
        text = text if result == self.scan_type(statement) else f"static_cast<{result}>({text})"
        self.out.add(f"const {result} {self.name(statement)} = {text};")

    def join_function(self, op: str, ctype: str) -> str:
        return f"[]({ctype} a, {ctype} b) -> {ctype} {{ return {self.update(op, ctype, 'a', 'b')}; }}"

    # Scalars.

    def part_dtype(self, reduction: Reduce) -> str:
        ctype = self.part_type(reduction)
        return next(dtype for dtype, kind in VALUE.items() if kind == ctype)

    def add_rows(self, reduction: Reduce) -> None:
        """Add a row's value to what a thread has found of a total."""
        view, _ = reads(reduction, self.plan.region)[0]
        ctype, target = self.part_type(reduction), self.lane_name(reduction)
        value = self.operand(view, "row", ctype, self.names)
        conditions = [self.first_of_row, self.absent]
        condition = " && ".join(c for c in conditions if c)
        text = f"{target} = {self.update(reduction.op, ctype, target, value)};"
        self.out.add(f"if ({condition}) {text}" if condition else text)

    @property
    def first_of_row(self) -> str:
        """The condition that a thread is the first of its row; empty where it is the only one."""
        return ""

    def block_totals(self, several: bool) -> None:
        """Join the totals of a block's threads; each of several blocks leaves a part."""
        for number, reduction in enumerate(self.plan.totals):
            ctype, name = self.part_type(reduction), self.lane_name(reduction)
            joined = f"across_lanes<{self.knobs.threads}>({name}, {self.join_function(reduction.op, ctype)})"
            if several:
                self.out.add(f"{name} = {joined};")
                self.out.add(f"if (threadIdx.x == 0) part_{number}[blockIdx.x] = {name};")
            else:
                self.take(reduction, joined)

    def take(self, reduction: Reduce, text: str) -> None:
        ctype, result = self.part_type(reduction), self.ctype(reduction.name)
        text = text if ctype == result else f"static_cast<{result}>({text})"
        self.out.add(f"const {result} {self.name(reduction)} = {text};")

    def join(self, blocks: int) -> None:
        """Write the second function: it joins the parts of all blocks, and computes what needs totals."""
        self.names = {}
        self.load_scalars()
        for number, reduction in enumerate(self.plan.totals):
            ctype, name = self.part_type(reduction), self.lane_name(reduction)
            self.out.add(f"{ctype} {name} = {self.initial(reduction.op, ctype)};")
            update = self.update(reduction.op, ctype, name, f"part_{number}[p]")
            self.out.add(f"for (int p = threadIdx.x; p < {blocks}; p += {JOINING}) {name} = {update};")
            self.take(
                reduction, f"across_lanes<{JOINING}>({name}, {self.join_function(reduction.op, ctype)})"
            )
        self.finish("threadIdx.x == 0")

    def finish(self, alone: str) -> None:
        """Write the statements and outputs that follow from totals, by one thread."""
        out = self.out
        out.open(f"if ({alone})")
        for statement in self.plan.scalars:
            assert isinstance(statement, Compute)
            self.define(statement, "scalar", self.names)
        for name in self.plan.outputs:
            if self.plan.level(name) == "scalar":
                out.add(f"{self.pointers[name]}[0] = {self.stored(name, self.statements[name])};")
        out.close()
