"""Scans in CUDA: a thread scans RUN neighbouring elements by itself, and the threads of a row what is left.

x.cumsum(-1) with x of [16384, 4096] gives a row to each warp, which takes 128 elements at a time:

    for (int start = 0; start < COLUMNS; start += LANES * RUN) {
        const int first = start + lane * RUN, there = COLUMNS - first;
        float x_run[RUN];
        load_run<THREADS, 1>(x_run, x_row + first, there);
        double cumsum_run[RUN];
        #pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const float x_value = x_run[k];
            cumsum_run[k] = k < there ? static_cast<double>(x_value) : 0.0;
        }
        scan_run<LANES>(cumsum_run, [](double a, double b) -> double { return a + b; }, cumsum_running, turn);
        ...
        store_run<THREADS, 1>(cumsum_out_row + first, cumsum_stored, there);
    }

`load_run` and `store_run` move 16 bytes at a time where a row begins at a multiple of that, and else let a
warp move neighbouring elements through shared memory. Rows that lie across memory are shared by LANES
threads, one in each warp; a thread's elements are below each other then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelwright.agent.builtin.codegen.c_like import Element
from kernelwright.agent.builtin.codegen.cuda.rows import CudaRowEmitter
from kernelwright.agent.builtin.codegen.cuda.types import STORAGE, VALUE
from kernelwright.agent.builtin.ir.program import Compute, Fused, Scan
from kernelwright.agent.builtin.ir.text import ITEMSIZE, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.agent.builtin.scheduling.passes import Stage, reads

_ACCESS = 16  # bytes that a thread loads or stores at most by one instruction
MOST_RUN = 8  # elements of a thread's run
_LEAST_RUN = 2


def run_of(plan: Plan) -> int:
    """Return the elements of which a thread's run may consist: of the widest ones 16 bytes."""
    if plan.mode != "rows":
        return MOST_RUN
    varying = [access for access in plan.accesses.values() if access.varies]
    dtypes = [access.dtype for access in varying] + [plan.output(name).dtype for name in plan.outputs]
    widest = max((ITEMSIZE[dtype] for dtype in dtypes), default=4)
    return max(_LEAST_RUN, min(MOST_RUN, _ACCESS // widest))


class CudaScanEmitter(CudaRowEmitter):
    """Rows with scans, in passes, of which every thread has a run of elements at a time."""

    @property
    def loop_style(self) -> str:
        return f"{super().loop_style}, {self.knobs.run} neighbours for each thread"

    def constants(self) -> None:
        super().constants()
        self.out.add(f"constexpr int RUN = {self.knobs.run}, THREADS = {self.knobs.threads};")
        self.out.add("int turn = 0;")

    def elements_of_pass(self, stage: Stage) -> None:
        segments = _segments(stage)
        if len(segments) == 1:
            super().elements_of_pass(stage)
            return
        plan, out, whole = self.plan, self.out, self.whole
        out.open(f"for ({whole} start = 0; start < COLUMNS; start += LANES * RUN)")
        out.add(f"const {whole} first = start + lane * RUN, there = {self.columns} - first;")
        self.runs = {a: self.load_run(a) for a in self.element_accesses(stage.in_pass) if self.step(a)}
        self.left: dict[str, str] = {}  # values of the segments before, by their arrays
        for number, segment in enumerate(segments):
            needed = [
                v.base for later in segments[number + 1 :] for s in later for v, _ in reads(s, plan.region)
            ]
            self.segment(segment, [*needed, *stage.stores], stage, last=number == len(segments) - 1)
        out.add("turn ^= 1;")
        out.close()

    def step(self, access: Access) -> int:
        """Return 1, or -1, where neighbours of a row are neighbours in memory, forwards or backwards."""
        if self.at_hand(access) or access.table or not self.across:
            return 0
        found = self.plan.digits(access.strides, self.inner_axes)
        single = len(found) == 1 and found[0].product == 1 and found[0].first
        return found[0].stride if single and abs(found[0].stride) == 1 else 0

    def place(self, access: Access) -> str:
        return f"{self.names[access]} {'+' if self.step(access) > 0 else '-'} first"

    def load_run(self, access: Access) -> str:
        name = self.fresh(f"{self.pointers[access.base]}_run")
        self.out.add(f"{STORAGE[access.dtype]} {name}[RUN];")
        self.out.add(f"load_run<THREADS, {self.step(access)}>({name}, {self.place(access)}, there);")
        return name

    def segment(self, statements: Sequence[Fused], later: Sequence[str], stage: Stage, last: bool) -> None:
        """Write a loop over a run: pointwise statements, then what is scanned, reduced or stored."""
        out = self.out
        own = [s for s in statements if isinstance(s, Compute)]
        scans = [s for s in statements if isinstance(s, Scan)]
        kept = [] if last else [s.name for s in own if s.name in later]
        for name, ctype in [
            *((n, self.ctype(n)) for n in kept),
            *((s.name, self.scan_type(s)) for s in scans),
        ]:
            self.left[name] = self.fresh(f"{self.statements[name]}_run")
            out.add(f"{ctype} {self.left[name]}[RUN];")
        runs_out = {n: self.plan.output(n) for n in stage.stores if last and self.step(self.plan.output(n))}
        arrays = {name: self.fresh(f"{access.base}_stored") for name, access in runs_out.items()}
        for name, access in runs_out.items():
            out.add(f"{STORAGE[access.dtype]} {arrays[name]}[RUN];")
        out.add("#pragma unroll")
        out.open("for (int k = 0; k < RUN; ++k)")
        begin = len(out.lines)
        addresses = self.load_elements_of(statements)
        inside = {s.name for s in statements}
        read = [view.base for s in statements for view, _ in reads(s, self.plan.region)]
        for name in dict.fromkeys([*read, *(stage.stores if last else ())]):
            if name in self.left and name not in inside:
                self.define_left(name)
        for s in own:
            self.define(s, "element", addresses, Element("j"))
        for name in kept:
            out.add(f"{self.left[name]}[k] = {self.statements[name]};")
        for scan in scans:
            ctype = self.scan_type(scan)
            value = self.operand(scan.operand, "element", ctype, addresses)
            out.add(f"{self.left[scan.name]}[k] = inside ? {value} : {self.initial(scan.op, ctype)};")
        if last:
            self.results(stage, addresses, arrays)
        self.head(begin)
        out.close()
        for scan in scans:
            function = "scan_run<LANES>" if self.across else "scan_run_down<WIDE, LANES>"
            join = self.join_function(scan.op, self.scan_type(scan))
            out.add(f"{function}({self.left[scan.name]}, {join}, {self.running(scan)}, turn);")
        for name, access in runs_out.items():
            out.add(f"store_run<THREADS, {self.step(access)}>({self.place(access)}, {arrays[name]}, there);")

    def head(self, begin: int) -> None:
        """Define an element's index, and whether it exists, where the lines from `begin` on use them."""
        lines = self.out.lines[begin:]
        indent = "    " * (self.out.depth)
        used = {word for line in lines for word in re.findall(r"\w+", line)}
        found = []
        if "j" in used:
            found.append(f"{indent}const {self.whole} j = first + k;")
        if "inside" in used:
            found.append(f"{indent}const bool inside = k < there;")
        self.out.lines[begin:begin] = found

    def define_left(self, name: str) -> None:
        statement = self.plan.statements[name]
        if isinstance(statement, Scan):
            self.scanned(statement, f"{self.left[name]}[k]")
        else:
            self.out.add(f"const {self.ctype(name)} {self.statements[name]} = {self.left[name]}[k];")

    def load_elements_of(self, statements: Sequence[Fused]) -> dict[Access, str]:
        """Expressions by which a loop over a run reads external values."""
        found: dict[Access, str] = {}
        for access in self.element_accesses(statements):
            ctype = VALUE[access.dtype]
            if access in self.runs:
                text = self.loaded(access, f"{self.runs[access]}[k]")
            elif self.at_hand(access) and not access.table:
                found[access] = self.names[access]
                continue
            else:
                text = self.names[access]
                if not self.at_hand(access):
                    text = self.element(access, text, self.element_terms(access))
                text = f"inside ? {text} : {self.nothing(ctype)}"
            if access.table:
                found[access] = f"({text})"
                continue
            if access not in self.elements:
                self.elements[access] = self.fresh(f"{self.pointers[access.base]}_value")
            found[access] = self.elements[access]
            self.out.add(f"const {ctype} {found[access]} = {text};")
        return found

    def results(self, stage: Stage, addresses: Mapping[Access, str], arrays: Mapping[str, str]) -> None:
        """Write what becomes of an element: stores, and what it is reduced to."""
        out = self.out
        for name, array in arrays.items():
            out.add(f"{array}[k] = {self.stored(name, self.statements[name])};")
        others = [name for name in stage.stores if name not in arrays]
        if not (stage.reductions or others):
            return
        out.open("if (inside)")
        for reduction in stage.reductions:
            ctype, target = self.lane_type(reduction), self.lane_name(reduction)
            value = self.operand(reduction.operand, "element", ctype, addresses)
            out.add(f"{target} = {self.update(reduction.op, ctype, target, value)};")
        for name in others:
            access = self.plan.output(name)
            where = total([*self.element_terms(access)]) or "0"
            out.add(f"{self.names[access]}[{where}] = {self.stored(name, self.statements[name])};")
        out.close()


def _segments(stage: Stage) -> list[list[Fused]]:
    """Statements of a pass, cut behind scans that others need; the last ones need all scans."""
    segments: list[list[Fused]] = [[]]
    for statement in stage.elements:
        if segments[-1] and isinstance(segments[-1][-1], Scan):
            segments.append([])
        segments[-1].append(statement)
    if isinstance(segments[-1][-1] if segments[-1] else None, Scan):
        segments.append([])
    segments[-1] += stage.reductions
    return segments
