"""Kernels whose vector loop runs along the row (or along a tensor without rows)."""

from collections.abc import Mapping, Sequence

from kernelwright.agent.builtin.codegen.c_like import Element
from kernelwright.agent.builtin.codegen.cpp.emit import CppEmitter
from kernelwright.agent.builtin.codegen.cpp.types import LOWEST, STORAGE, SUFFIX, VALUE
from kernelwright.agent.builtin.ir.ops import REDUCTIONS
from kernelwright.agent.builtin.ir.program import Compute, Fused, Reduce, Scan
from kernelwright.agent.builtin.ir.text import ITEMSIZE, times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Loop
from kernelwright.agent.builtin.scheduling.online import Online
from kernelwright.agent.builtin.scheduling.passes import Stage, closure, reads
from kernelwright.kernelbench.free_sizes.size import divides, is_free

PREFETCH_BLOCK = 256  # elements computed between two bursts of prefetches; chosen by hand
LINE_BYTES = 64  # of a cache line
LOOP_VARIABLES = "jklmoq"


class CppRowEmitter(CppEmitter):
    scanned: Scan | None = None  # whose running value a vector loop shares between its lanes
    squared: Online | None = None  # whose second pass is written
    in_block = False  # whether what is reduced is a block's, which a row's then takes in

    @property
    def flat(self) -> bool:
        return self.plan.mode == "flat"

    @property
    def block(self) -> int:
        return (
            self.knobs.block if is_free(self.plan.row_length) else min(self.knobs.block, self.plan.row_length)
        )

    @property
    def row_count(self) -> int:
        return -(-self.plan.row_length // self.block) if self.flat else self.plan.rows

    def constants(self) -> None:
        plan, out = self.plan, self.out
        if self.flat:
            self.define_sizes(NUMEL=plan.row_length, BLOCK=self.block)
            whole = "NUMEL" if divides(self.block, plan.row_length) else "(NUMEL + BLOCK - 1)"
            out.add(f"{self.kind(plan.row_length)} int64_t ROWS = {whole} / BLOCK;")
        else:
            self.define_sizes(ROWS=plan.rows, COLUMNS=plan.row_length)
            blocks = {self.pass_block(s) for s in plan.stages if s.has_pass and self.is_blocked(s)}
            if self.block in blocks or self.knobs.streaming:
                out.add(f"constexpr int64_t BLOCK = {self.block};")
        self.chunks()

    def open_row(self) -> None:
        if self.flat:
            self.out.add("const int64_t first = row * BLOCK;")
            if not divides(self.block, self.plan.row_length):
                self.out.add("const int64_t n = std::min(BLOCK, NUMEL - first);")

    def row_terms(self, access: Access, row: str = "row") -> list[str]:
        if self.flat:
            return [times("first", access.strides[-1])]
        axes = [axis for axis, inside in enumerate(self.plan.inner) if not inside]
        whole = f"{row} * {self.plan.row_length}"
        return [f"{row} * COLUMNS" if t == whole else t for t in self.outside(access, axes, row)]

    def value(self, name: str) -> str:
        return self.statements[name]

    def outputs_and_buffers(self) -> None:
        plan, out = self.plan, self.out
        for name in plan.outputs:
            if plan.level(name) == "element" or name in plan.results:
                self.row_pointer(self.plan.output(name))
        self.carried_rows()
        for name in plan.kept:
            if name not in plan.carried:
                out.add(f"alignas(64) {self.ctype(name)} {self.kept_name(name)}[COLUMNS];")
        if self.flat and self.knobs.prefetch:
            self.fetch_ahead("BLOCK + ", "BLOCK + ", "0", "BLOCK")

    def row_statements(self, stage: Stage) -> None:
        for statement in stage.row:
            if isinstance(statement, Reduce):
                self.pick(statement, "COLUMNS", self.kept)
            elif isinstance(statement, Compute):
                self.define(statement, "row", self.names)

    def store_row_outputs(self) -> None:
        for name in self.plan.outputs:
            if self.plan.level(name) == "row":
                whole = name not in self.plan.results
                target = f"{self.pointers[name]}[row]" if whole else f"*{self.names[self.plan.output(name)]}"
                self.out.add(f"{target} = {self.stored(name, self.statements[name])};")

    def hand_on(self) -> None:
        for name in self.plan.carried:
            if self.plan.level(name) == "row":
                self.out.add(f"{self.kept_name(name)}[0] = {self.statements[name]};")

    def row_size(self, name: str) -> str:
        if self.flat:
            return "BLOCK"
        return "COLUMNS" if self.plan.level(name) == "element" else "1"

    @property
    def row_place(self) -> str:
        return "0"

    def add_to_part(self, reduction: Reduce) -> None:
        view, level = reads(reduction, self.plan.region)[0]
        if level == "element":
            value = self.reduced_name(reduction)
        else:
            value = self.operand(view, "row", self.ctype(reduction.name), self.names)
        self.out.add(self.part_update(reduction, value))

    # A pass.

    def nest(self, stage: Stage) -> list[Loop]:
        return self.plan.nest(self.pass_accesses(stage), inside=True)

    def is_blocked(self, stage: Stage) -> bool:
        """Return True if the vector loop of a pass is cut into blocks."""
        size = self.nest(stage)[-1].size
        return not self.flat and (is_free(size) or size > self.pass_block(stage))

    def pass_block(self, stage: Stage) -> int:
        return min(self.block, PREFETCH_BLOCK) if self.fetches(stage) else self.block

    def fetches(self, stage: Stage) -> bool:
        """Return True if this pass prefetches the next row: the second pass, whose own row is cached."""
        if not self.knobs.prefetch or self.flat or self.knobs.online:
            return False
        passes = [s for s in self.plan.stages if s.has_pass]
        return stage is passes[min(1, len(passes) - 1)] and len(self.nest(stage)) == 1

    def fetch_ahead(self, inputs_ahead: str, outputs_ahead: str, begin: str, end: str) -> None:
        """Fetch what comes next of the inputs and, unless they are streamed, of the outputs."""
        full = self.plan.full_strides()
        fetched: list[tuple[Access, str, str]] = []
        for access in dict.fromkeys(self.plan.accesses.values()):
            if access.strides == full and not access.table:
                fetched.append((access, inputs_ahead, ""))
        for name in self.plan.outputs:
            plain = name not in self.knobs.in_place and not self.knobs.streaming
            if plain and self.plan.level(name) == "element":
                fetched.append((self.plan.output(name), outputs_ahead, ", 1"))
        lookups = [] if self.flat else self.plan.lookups()
        for table, index in lookups:
            at = total([*self.row_terms(index, "next"), index.begin])
            fetched.append((table, f"{times(f'{self.pointers[index.base]}[{at}]', table.table)} + ", ""))
        if not fetched:
            return
        if lookups:
            self.out.add("const int64_t next = std::min<int64_t>(row + 1, ROWS - 1);")
        step = LINE_BYTES // max(ITEMSIZE[access.dtype] for access, _, _ in fetched)
        self.out.add("#pragma GCC unroll 1")  # unrolled, it keeps g++ 12 from vectorizing the loop below it
        self.out.open(f"for (int64_t p = {begin}; p < {end}; p += {step})")
        for access, ahead, write in fetched:
            self.out.add(f"__builtin_prefetch({self.names[access]} + {ahead}p{write});")
        self.out.close()

    def passes(self) -> None:
        self.running: set[str] = set()  # running values of scans that are declared
        self.once: dict[Reduce, str] = {}  # elements that are compared, by their names
        found = self.knobs.online
        for number, stage in enumerate(self.plan.stages):
            self.row_statements(stage)
            if found is not None and number == found.number:
                self.online_pass(found)
            elif stage.has_pass and (found is None or number != found.number + 1):
                self.one_pass(stage)
            self.kept |= set(stage.keeps)

    def one_pass(self, stage: Stage) -> None:
        out, loops = self.out, self.nest(stage)
        blocked = self.is_blocked(stage)
        scans = [s for s in stage.elements if isinstance(s, Scan)]
        summed = [r for r in stage.reductions if (len(loops) > 1 or blocked) and self.sums_in_blocks(r)]
        for reduction in stage.reductions:
            if reduction in summed:
                out.add(f"double {self.reduced_name(reduction)}_total = 0.0;")
            else:
                self.start(reduction)
        for scan in scans:
            ctype, running = self.scan_type(scan), f"{self.name(scan)}_running"
            declared = running in self.running  # a pass before this one computed it, too
            out.add(f"{'' if declared else f'{ctype} '}{running} = {self.initial(scan.op, ctype)};")
            self.running.add(running)
        self.open_loops(stage)
        if self.fetches(stage):
            begin, end = ("start", f"start + {self.vector_limit(stage)}") if blocked else ("0", "COLUMNS")
            self.fetch_ahead("COLUMNS + ", "", begin, end)
        self.vector_loop(stage, summed, scans)
        for reduction in summed:
            out.add(f"{self.reduced_name(reduction)}_total += {self.reduced_name(reduction)};")
        out.close(len(loops) - 1 + blocked)
        for reduction in stage.reductions:
            name = self.reduced_name(reduction)
            if reduction in summed:
                out.add(f"const float {name} = static_cast<float>({name}_total);")
            elif self.watches_for_nan(reduction):
                out.add(f"if ({name}_nan) {name} = NAN;")

    def start(self, reduction: Reduce) -> None:
        ctype, name = self.ctype(reduction.name), self.reduced_name(reduction)
        self.out.add(f"{ctype} {name} = {self.initial(reduction.op, ctype)};")
        if self.watches_for_nan(reduction):
            self.out.add(f"int32_t {name}_nan = 0;")

    def open_loops(self, stage: Stage) -> None:
        """Open the loops around a pass's vector loop."""
        *outer, vector = self.nest(stage)
        for variable, loop in zip(LOOP_VARIABLES[: len(outer)], outer, strict=True):
            self.out.open(f"for (int64_t {variable} = 0; {variable} < {loop.size}; ++{variable})")
        if self.is_blocked(stage):
            step, length = self.step(stage), self.limit(vector.size)
            self.out.open(f"for (int64_t start = 0; start < {length}; start += {step})")
            if not divides(self.pass_block(stage), vector.size):
                self.out.add(f"const int64_t n = std::min<int64_t>({step}, {length} - start);")

    def vector_loop(self, stage: Stage, summed: Sequence[Reduce] = (), scans: Sequence[Scan] = ()) -> None:
        """Write the innermost loop of a pass; sums that are `summed` begin with it."""
        out, accesses = self.out, self.pass_accesses(stage)
        *outer, vector = self.nest(stage)
        blocked, variables = self.is_blocked(stage), LOOP_VARIABLES[: len(outer)]
        bases = {a: self.base_terms(a, variables, outer, blocked, vector) for a in (None, *accesses)}
        addresses = self.element_addresses(stage, accesses, bases, vector, variables)
        for reduction in summed:
            out.add(f"float {self.reduced_name(reduction)} = 0.0f;")
        limit = self.vector_limit(stage)
        stores = self.store_targets(stage, bases)
        index = total([*bases[None], "i"])
        place = Element(index, index)
        self.scanned = scans[0] if len(scans) == 1 and not stage.reductions else None
        if self.scanned is not None:
            running = f"{self.name(self.scanned)}_running"
            out.add(f"#pragma omp simd reduction(inscan, {REDUCTIONS[self.scanned.op].simd} : {running})")
            out.open(f"for (int64_t i = 0; i < {limit}; ++i)")
            self.before_scan(stage, self.scanned, addresses, place)
            out.add(f"#pragma omp scan inclusive({running})")
        else:
            if not scans:  # which follow each other
                out.add("#pragma omp simd" + "".join(self.clause(r) for r in stage.reductions))
            out.open(f"for (int64_t i = 0; i < {limit}; ++i)")
        self.element_body(stage, addresses, stores, place)
        out.close()
        if self.knobs.streaming:
            self.stream(stage, bases, limit)

    def vector_limit(self, stage: Stage) -> str:
        """Return the length of the vector loop."""
        size = self.nest(stage)[-1].size
        if self.flat:
            return "BLOCK" if divides(self.block, size) else "n"
        if not self.is_blocked(stage):
            return self.limit(size)
        return self.step(stage) if divides(self.pass_block(stage), size) else "n"

    def step(self, stage: Stage) -> str:
        """Return the length of a block in a pass over blocks, the last apart."""
        size = self.pass_block(stage)
        return "BLOCK" if size == self.block else str(size)

    def reduced_name(self, reduction: Reduce) -> str:
        name = super().reduced_name(reduction)
        return f"{name}_block" if self.in_block else name

    def online_pass(self, found: Online) -> None:
        """Two passes over the blocks of a row, the second while a block is in the cache."""
        out, stages = self.out, self.plan.stages
        first, second = stages[found.number], stages[found.number + 1]
        one, two = self.name(found.first), self.name(found.second)
        ctype, size = self.ctype(found.second.name), self.vector_limit(first)
        out.add(f"double {two}_total = 0.0;")
        if found.kind == "exponentials":
            self.start(found.first)
        else:
            out.add(f"double {one}_total = 0.0, {two}_mean = 0.0;")
            out.add(f"int64_t {two}_seen = 0;")
        around = len(self.nest(first)) - 1 + self.is_blocked(first)
        if not around:  # the whole row is one block
            out.open("")
        self.open_loops(first)
        self.in_block = True
        self.start(found.first)
        out.open("")
        self.vector_loop(first)
        out.close()
        if found.kind == "exponentials":
            out.add(f"{one}_nan |= {one}_block_nan;")
            out.open(f"if ({one}_block > {one})")
            out.add(f"{two}_total *= exp_{SUFFIX[ctype]}({one} - {one}_block);")
            out.add(f"{one} = {one}_block;")
            out.close()
            out.open(f"if ({one} > {LOWEST[ctype]})")
        else:
            out.add(f"const {ctype} {self.statements[found.mean]} = {one}_block / {size};")
            out.add(f"{ctype} {two}_rest = 0.0f;")
            self.squared = found
        self.start(found.second)
        out.open("")
        self.vector_loop(second)
        out.close()
        self.in_block, self.squared = False, None
        if found.kind == "exponentials":
            out.add(f"{two}_total += {two}_block;")
            out.close()
        else:
            out.add(f"{one}_total += {one}_block;")
            out.add(
                f"const double {two}_off = static_cast<double>({two}_rest) / {size};  // of the block's mean"
            )
            out.add(f"const double {two}_about = {two}_block - {two}_off * {two}_rest;")
            out.add(f"{two}_total += {two}_about < 0.0 ? 0.0 : {two}_about;")
            out.add(f"const double {two}_gap = {self.statements[found.mean]} + {two}_off - {two}_mean;")
            out.add(f"{two}_total += {two}_gap * {two}_gap * {two}_seen * {size} / ({two}_seen + {size});")
            out.add(f"{two}_seen += {size};")
            out.add(f"{two}_mean += {two}_gap * {size} / {two}_seen;")
        out.close(max(around, 1))
        if found.kind == "exponentials":
            out.add(f"if ({one}_nan) {one} = NAN;")
            whole = f"{one} > {LOWEST[ctype]}"
            out.add(f"const {ctype} {two} = {whole} ? static_cast<{ctype}>({two}_total) : NAN;")
        else:
            out.add(f"const {ctype} {one} = static_cast<{ctype}>({one}_total);")
            out.add(f"const {ctype} {two} = static_cast<{ctype}>({two}_total);")

    def before_scan(self, stage: Stage, scan: Scan, addresses: dict[Access, str], place: Element) -> None:
        """Write the part of the loop before OpenMP's scan, shared by the lanes; its names end with it."""
        by_name: dict[str, Fused] = {s.name: s for s in stage.elements}
        needed = closure([scan.operand.base], by_name, set())
        first = [s for s in stage.elements if s.name in needed and isinstance(s, Compute)]
        read: list[Fused] = [*first, scan]
        for base in dict.fromkeys(v.base for s in read for v, _ in reads(s, self.plan.region)):
            if base in self.kept:
                text = f"{self.kept_name(base)}[{place.kept}]"
                self.out.add(f"const {self.ctype(base)} {self.statements[base]} = {text};")
        for statement in first:
            self.define(statement, "element", addresses, place)
        self.running_update(scan, f"{self.name(scan)}_running", addresses)

    def scan(self, statement: Scan, addresses: Mapping[Access, str]) -> None:
        running = f"{self.name(statement)}_running"
        if statement is not self.scanned:
            self.running_update(statement, running, addresses)
        self.running_value(statement, running)

    def sums_in_blocks(self, reduction: Reduce) -> bool:
        return reduction.op == "sum" and self.ctype(reduction.name) == "float"

    def watches_for_nan(self, reduction: Reduce) -> bool:
        """Return True if NaNs are looked for apart: lanes then keep the extreme by one instruction."""
        return reduction.op in ("amax", "amin") and self.ctype(reduction.name) in ("float", "double")

    def accumulate(self, reduction: Reduce, value: str) -> None:
        if self.squared is not None:
            self.out.add(f"{self.name(reduction)}_rest += {self.statements[self.squared.centered]};")
        if not self.watches_for_nan(reduction):
            super().accumulate(reduction, value)
            return
        name, sign = self.reduced_name(reduction), ">" if reduction.op == "amax" else "<"
        if not value.isidentifier():
            # Once: a load behind the condition g++ 12 may mask, of 16 bits as if it were of 32.
            if reduction not in self.once:
                self.once[reduction] = self.fresh(f"{self.name(reduction)}_value")
            once = self.once[reduction]
            self.out.add(f"const {self.ctype(reduction.name)} {once} = {value};")
            value = once
        self.out.add(f"{name} = {value} {sign} {name} ? {value} : {name};")
        self.out.add(f"{name}_nan |= {value} != {value};")

    def limit(self, size: int) -> str:
        return "COLUMNS" if size == self.plan.row_length else str(size)

    def base_terms(
        self, access: Access | None, variables: str, outer: Sequence[Loop], blocked: bool, vector: Loop
    ) -> list[str]:
        """Return the index of an access without the vector loop's own variable."""
        terms = [times(v, loop.strides[access]) for v, loop in zip(variables, outer, strict=True)]
        if blocked and vector.strides[access]:
            terms.append(times("start", vector.strides[access]))
        return [t for t in terms if t]

    def element_addresses(
        self,
        stage: Stage,
        accesses: Sequence[Access],
        bases: dict[Access | None, list[str]],
        vector: Loop,
        variables: str,
    ) -> dict[Access, str]:
        """Expressions by which the vector loop reads external values; constant ones are loaded before."""
        outputs = {self.plan.output(name) for name in stage.stores}
        found: dict[Access, str] = {}
        for access in accesses:
            if access in outputs:
                continue
            if not self.varies_in_row(access):
                found[access] = self.names[access]
            elif vector.strides[access] or access.table:
                terms = [*bases[access], times("i", vector.strides[access])]
                found[access] = self.element(access, self.names[access], terms)
            else:
                found[access] = f"{self.names[access]}_{variables[-1]}"
                text = self.loaded(access, f"{self.names[access]}[{total(bases[access])}]")
                self.out.add(f"const {VALUE[access.dtype]} {found[access]} = {text};")
        return found

    def store_targets(self, stage: Stage, bases: dict[Access | None, list[str]]) -> dict[str, str]:
        found = {}
        for name in stage.stores:
            access = self.plan.output(name)
            if self.knobs.streaming:
                block = f"{self.statements[name]}_block"
                self.out.add(f"alignas(64) {STORAGE[access.dtype]} {block}[BLOCK];")
                found[name] = f"{block}[i]"
            else:
                stride = self.nest(stage)[-1].strides[access]
                found[name] = f"{self.names[access]}[{total([*bases[access], times('i', stride)])}]"
        return found

    def stream(self, stage: Stage, bases: dict[Access | None, list[str]], limit: str) -> None:
        for name in stage.stores:
            access = self.plan.output(name)
            target = total([self.names[access], *bases[access]])
            size = f"{limit} * sizeof({STORAGE[access.dtype]})"
            self.out.add(f"stream_bytes({target}, {self.statements[name]}_block, {size});")

    def clause(self, reduction: Reduce) -> str:
        name = self.reduced_name(reduction)
        also = f" reduction(| : {name}_nan)" if self.watches_for_nan(reduction) else ""
        if self.squared is not None:
            also = f" reduction(+ : {self.name(reduction)}_rest)"
        return f" reduction({REDUCTIONS[reduction.op].simd} : {name}){also}"
