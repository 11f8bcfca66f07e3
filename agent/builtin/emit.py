"""The C++ text of one planned kernel: types, addresses, expressions and loops."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.builtin.ops import POINTWISE, REDUCTIONS
from agent.builtin.plan import Access, Loop, Plan, Stage, closure, reads
from agent.builtin.program import Compute, Constant, Operand, Program, Reduce

STORAGE = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "bool": "bool",
    "bfloat16": "uint16_t",
    "float16": "uint16_t",
}
VALUE = {**STORAGE, "bfloat16": "float", "float16": "float"}
SUFFIX = {"float": "f32", "double": "f64", "int64_t": "i64", "int32_t": "i32", "uint8_t": "u8", "bool": "b"}
LOWEST = {"float": "-INFINITY", "double": "-INFINITY", "int64_t": "INT64_MIN", "int32_t": "INT32_MIN"}
HIGHEST = {"float": "INFINITY", "double": "INFINITY", "int64_t": "INT64_MAX", "int32_t": "INT32_MAX"}

RESERVED = set(
    [
        "alignas",
        "and",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "not",
        "or",
        "operator",
        "private",
        "protected",
        "public",
        "register",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
        "row",
        "outer",
        "i",
        "j",
        "k",
        "start",
        "n",
        "first",
        "chunk",
        "begin",
        "end",
        "inside",
        "ROWS",
        "COLUMNS",
        "BLOCK",
        "BLOCKS",
        "CHUNKS",
        "NUMEL",
        "WIDTH",
    ]
)

SUM_BLOCK = 8192  # elements a lane-wise float sum may cover before it goes to a double
CHUNKS = 256  # partial sums of a reduction to a scalar
PREFETCH_BLOCK = 256  # elements computed between two bursts of prefetches
COLUMN_SUM_BLOCK = 256  # the same where a lane sums one column


@dataclass(frozen=True)
class Knobs:
    """The schedule of one kernel, in its own types."""

    block: int
    streaming: bool
    parallel: bool
    prefetch: bool
    in_place: frozenset[str] = frozenset()  # outputs written over an input


@dataclass(frozen=True)
class Kernel:
    """The text of one kernel with the names its caller needs."""

    name: str
    arguments: tuple[str, ...]  # graph names, in the order of the parameters
    parameters: tuple[str, ...]
    body: tuple[str, ...]
    called: tuple[str, ...]  # words of the body, to pick helpers by


class Lines:
    """Text with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def add(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        self.add(text + " {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.add("}")


def literal(value: float | int | bool, ctype: str) -> str:
    """A number in C++. Conversion is Python's: a float that is no integer is cut for an integer type."""
    if ctype == "bool":
        return "true" if value else "false"
    if ctype in ("float", "double"):
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        return repr(float(value)) + ("f" if ctype == "float" else "")
    return str(int(value))


class Emitter:
    def __init__(self, plan: Plan, program: Program, knobs: Knobs, pointers: dict[str, str]) -> None:
        """`pointers` gives the parameter name of every external base and output."""
        self.plan = plan
        self.program = program
        self.knobs = knobs
        self.pointers = pointers
        self.out = Lines()
        self.columns = plan.mode == "columns"
        self.names: dict[Access, str] = {}
        self.uses: dict[str, int] = {}
        self.taken: set[str] = set(pointers.values())
        self.kept: set[str] = set()
        self.statement_names = {s.name: self.fresh(s.name) for s in plan.region.statements}

    # Names and types.

    def fresh(self, name: str) -> str:
        text = re.sub(r"\W", "_", name)
        while text in RESERVED or text in self.taken:
            text += "_"
        self.taken.add(text)
        return text

    def ctype(self, name: str) -> str:
        return VALUE[self.program.dtypes[name]]

    def storage(self, name: str) -> str:
        return STORAGE[self.program.dtypes[name]]

    # Addresses.

    def row_offset(self, strides: Sequence[int], variable: str) -> list[str]:
        """Terms of the offset of a row, from the index over the axes outside the row."""
        plan = self.plan
        axes = [a for a in range(len(plan.sizes)) if not plan.inner[a]]
        if self.columns:
            axes = axes[:-1]
        merged: list[tuple[int, int, int]] = []  # size, stride, product of the sizes further in
        inner = 1
        for axis in reversed(axes):
            size, stride = plan.sizes[axis], strides[axis]
            if merged and merged[-1][1] * merged[-1][0] == stride and (stride or not merged[-1][1]):
                last = merged[-1]
                merged[-1] = (last[0] * size, last[1], last[2])
            else:
                merged.append((size, stride, inner))
            inner *= size
        terms = []
        for position, (size, stride, product) in enumerate(merged):
            if stride == 0:
                continue
            text = variable if product == 1 else f"{variable} / {product}"
            if position < len(merged) - 1:
                text = f"{text} % {size}"
            terms.append(_times(text, stride))
        return list(reversed(terms))

    def output_access(self, name: str) -> Access:
        plan = self.plan
        if plan.level(name) == "element":
            return Access(name, self.program.dtypes[name], plan.full_strides(), 0)
        strides, step = [], 1
        for axis in reversed(range(len(plan.sizes))):
            strides.append(0 if plan.inner[axis] else step)
            step *= 1 if plan.inner[axis] else plan.sizes[axis]
        return Access(name, self.program.dtypes[name], tuple(reversed(strides)), 0)

    def varies_inside(self, access: Access) -> bool:
        flags = list(self.plan.inner)
        if self.columns:
            flags[-1] = True
        return any(stride for stride, inside in zip(access.strides, flags, strict=True) if inside)

    # Expressions.

    def load(self, access: Access, index: str) -> str:
        text = f"{self.names[access]}[{index}]" if index else self.names[access]
        if access.dtype in ("bfloat16", "float16") and index:
            return f"{access.dtype}_load({text})"
        return text

    def operand(self, operand: Operand, level: str, wanted: str, addresses: dict[Access, str]) -> str:
        if isinstance(operand, Constant):
            return literal(operand.value, wanted)
        access = self.plan.access(operand, level)  # type: ignore[arg-type]
        if access is not None:
            text, ctype = addresses[access], VALUE[access.dtype]
        else:
            text, ctype = self.value(operand.base), self.ctype(operand.base)
        return text if ctype == wanted else f"static_cast<{wanted}>({text})"

    def value(self, name: str) -> str:
        text = self.statement_names[name]
        return f"{text}[i]" if self.columns and self.plan.level(name) == "row" else text

    def expression(
        self, statement: Compute, level: str, addresses: dict[Access, str], index: str = "i"
    ) -> str:
        ctype = VALUE[statement.compute_dtype]
        entry = POINTWISE[statement.op]
        texts = []
        for position, operand in enumerate(statement.operands):
            wanted = "bool" if statement.op == "where" and position == 0 else ctype
            texts.append(self.operand(operand, level, wanted, addresses))
        template = entry.template(statement.settings)
        template = template.replace("highest_i32", "INT32_MAX").replace("{t}", SUFFIX[ctype])
        template = re.sub(r"<([^<>=&| ]+)>", lambda m: literal(float(m[1]), ctype), template)
        template = template.replace("{index}", f"static_cast<int32_t>({index})")
        for position, text in enumerate(texts):
            template = template.replace(f"{{{position}}}", text)
        return template

    # The kernel.

    def kernel(self, name: str, arguments: Sequence[str]) -> Kernel:
        plan, out = self.plan, self.out
        self.scalar_loads()
        totals = plan.totals
        self.constants()
        if totals:
            for total in totals:
                out.add(f"{self.part_type(total)} {self.name(total)}_parts[CHUNKS];")
        self.open_rows()
        self.row_setup()
        for stage in plan.stages:
            self.stage(stage)
        self.row_outputs()
        self.total_parts()
        self.close_rows()
        self.finish()
        parameters = tuple(
            f"{'' if a in plan.outputs else 'const '}{self.storage(a)}* {self.pointers[a]}" for a in arguments
        )
        words = tuple(dict.fromkeys(re.findall(r"\w+", "\n".join(out.lines))))
        return Kernel(name, tuple(arguments), parameters, tuple(out.lines), words)

    def name(self, statement: Reduce | Compute) -> str:
        return self.statement_names[statement.name]

    def scalar_loads(self) -> None:
        """Values that never vary are read once, before the rows."""
        for access in dict.fromkeys(self.plan.accesses.values()):
            if not any(access.strides):
                self.names[access] = self.fresh(f"{self.pointers[access.base]}_value")
                load = f"{self.pointers[access.base]}[{access.offset}]"
                if access.dtype in ("bfloat16", "float16"):
                    load = f"{access.dtype}_load({load})"
                self.out.add(f"const {VALUE[access.dtype]} {self.names[access]} = {load};")

    @property
    def row_count(self) -> int:
        plan = self.plan
        if plan.mode == "flat":
            return -(-plan.row_length // self.block)
        if self.columns:
            return plan.rows // plan.sizes[-1] * -(-plan.sizes[-1] // self.block)
        return plan.rows

    @property
    def block(self) -> int:
        plan = self.plan
        length = plan.sizes[-1] if self.columns else plan.row_length
        return min(self.knobs.block, length)

    def constants(self) -> None:
        plan, out = self.plan, self.out
        if plan.mode == "flat":
            out.add(f"constexpr int64_t NUMEL = {plan.row_length}, BLOCK = {self.block};")
            out.add("constexpr int64_t ROWS = (NUMEL + BLOCK - 1) / BLOCK;")
        elif self.columns:
            width = plan.sizes[-1]
            out.add(f"constexpr int64_t WIDTH = {width}, BLOCK = {self.block};")
            out.add("constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;")
            out.add(f"constexpr int64_t ROWS = {plan.rows // width} * BLOCKS;")
        else:
            out.add(f"constexpr int64_t ROWS = {plan.rows}, COLUMNS = {plan.row_length};")
            if self.knobs.streaming or any(
                self.blocked(self.nest(stage), stage) for stage in plan.stages if stage.has_pass
            ):
                out.add(f"constexpr int64_t BLOCK = {self.block};")
        if plan.totals:
            out.add(f"constexpr int64_t CHUNKS = {min(CHUNKS, self.row_count)};")

    def open_rows(self) -> None:
        out, plan = self.out, self.plan
        fenced = self.knobs.streaming
        if self.knobs.parallel and fenced:
            out.add("#pragma omp parallel")
            out.open("")
            out.lines[-1] = "    " * (out.depth - 1) + "{"
            out.add("#pragma omp for schedule(static) nowait")
        elif self.knobs.parallel:
            out.add("#pragma omp parallel for schedule(static)")
        if plan.totals:
            out.open("for (int64_t chunk = 0; chunk < CHUNKS; ++chunk)")
            for total in plan.totals:
                initial = self.initial(total.op, self.part_type(total))
                out.add(f"{self.part_type(total)} {self.name(total)}_part = {initial};")
            out.open("for (int64_t row = chunk * ROWS / CHUNKS; row < (chunk + 1) * ROWS / CHUNKS; ++row)")
        else:
            out.open("for (int64_t row = 0; row < ROWS; ++row)")

    def close_rows(self) -> None:
        out = self.out
        out.close()
        if self.plan.totals:
            for total in self.plan.totals:
                out.add(f"{self.name(total)}_parts[chunk] = {self.name(total)}_part;")
            out.close()
        if self.knobs.streaming:
            out.add("stream_fence();")
            if self.knobs.parallel:
                out.close()

    def row_setup(self) -> None:
        out, plan = self.out, self.plan
        variable = "row"
        if plan.mode == "flat":
            out.add("const int64_t first = row * BLOCK;")
            out.add("const int64_t n = std::min(BLOCK, NUMEL - first);")
        elif self.columns:
            if plan.rows > plan.sizes[-1]:
                out.add("const int64_t outer = row / BLOCKS;")
                out.add("const int64_t first = row % BLOCKS * BLOCK;")
            else:
                out.add("const int64_t first = row * BLOCK;")
            out.add("const int64_t n = std::min(BLOCK, WIDTH - first);")
            variable = "outer"
        for access in dict.fromkeys(plan.accesses.values()):
            if any(access.strides):
                self.row_pointer(access, variable, const=True)
        for name in plan.outputs:
            if plan.level(name) == "element" or (self.columns and plan.level(name) == "row"):
                self.row_pointer(self.output_access(name), variable, const=False)
        if plan.mode == "flat" and self.knobs.prefetch:
            self.prefetch("BLOCK + ", "0", "BLOCK", "BLOCK + ")
        length = plan.row_length
        for name in plan.kept:
            size = f"{length} * BLOCK" if self.columns else str(length)
            out.add(f"alignas(64) {self.ctype(name)} {self.kept_name(name)}[{size}];")
        if self.columns:
            for statement in plan.region.statements:
                if plan.level(statement.name) == "row":
                    out.add(f"alignas(64) {self.ctype(statement.name)} {self.name(statement)}[BLOCK];")

    def kept_name(self, name: str) -> str:
        return f"{self.statement_names[name]}_kept"

    def row_pointer(self, access: Access, variable: str, const: bool) -> None:
        terms = self.row_offset(access.strides, variable)
        if access.offset:
            terms.append(str(access.offset))
        if (self.columns or self.plan.mode == "flat") and access.strides[-1]:
            terms.append("first")
        pointer = self.pointers[access.base]
        varies = self.varies_inside(access)
        self.names[access] = self.fresh(f"{pointer}_row" if varies else f"{pointer}_value")
        address = " + ".join([pointer, *terms])
        qualifier = "const " if const else ""
        if varies or not const:
            self.out.add(f"{qualifier}{STORAGE[access.dtype]}* {self.names[access]} = {address};")
        else:
            load = f"{pointer}[{' + '.join(terms) or '0'}]"
            if access.dtype in ("bfloat16", "float16"):
                load = f"{access.dtype}_load({load})"
            self.out.add(f"const {VALUE[access.dtype]} {self.names[access]} = {load};")

    # Stages.

    def stage(self, stage: Stage) -> None:
        side_by_side = self.columns and bool(stage.row)
        if side_by_side:
            self.out.add("#pragma omp simd")
            self.out.open("for (int64_t i = 0; i < n; ++i)")
        for statement in stage.row:
            if isinstance(statement, Reduce):
                self.pick(statement)
                continue
            text = self.expression(statement, "row", self.row_addresses(statement))
            if self.columns:
                self.out.add(f"{self.name(statement)}[i] = {text};")
            else:
                self.out.add(f"const {self.ctype(statement.name)} {self.name(statement)} = {text};")
        if side_by_side:
            self.out.close()
        if stage.has_pass:
            self.one_pass(stage)
        self.kept |= set(stage.keeps)

    def row_addresses(self, statement: Compute | Reduce) -> dict[Access, str]:
        found = {}
        for view, level in reads(statement, self.plan.region):
            access = self.plan.access(view, level)
            if access is not None and level == "row":
                found[access] = self.load(access, "i" if self.columns and access.strides[-1] else "")
        return found

    def pass_accesses(self, stage: Stage) -> list[Access]:
        """External accesses of a pass that vary inside a row, and its outputs."""
        found: dict[Access, None] = {}
        for statement in (*stage.elements, *stage.reductions):
            for view, level in reads(statement, self.plan.region):
                access = self.plan.access(view, level)
                if access is not None and level == "element":
                    found[access] = None
        for name in stage.stores:
            found[self.output_access(name)] = None
        return list(found)

    def nest(self, stage: Stage) -> list[Loop]:
        return self.plan.nest(self.pass_accesses(stage), inside=True)

    def blocked(self, loops: Sequence[Loop], stage: Stage) -> bool:
        """Whether the vector loop of a pass in `rows` mode is cut into blocks."""
        return self.plan.mode == "rows" and loops[-1].size > self.pass_block(stage)

    def pass_block(self, stage: Stage) -> int:
        return min(self.block, PREFETCH_BLOCK) if self.prefetches(stage) else self.block

    def prefetches(self, stage: Stage) -> bool:
        """Whether this pass fetches the next row: the second pass, which finds its own row in the cache."""
        if not self.knobs.prefetch or self.plan.mode != "rows":
            return False
        passes = [s for s in self.plan.stages if s.has_pass]
        return stage is passes[min(1, len(passes) - 1)] and len(self.nest(stage)) == 1

    def prefetch(self, ahead: str, begin: str, end: str, outputs_ahead: str) -> None:
        """Fetches what the next row reads and, without streaming, the lines this row writes."""
        plan, lines = self.plan, []
        full = plan.full_strides()
        for access in dict.fromkeys(plan.accesses.values()):
            if access.strides == full:
                lines.append(f"__builtin_prefetch({self.names[access]} + {ahead}p);")
        for name in plan.outputs:
            plain = name not in self.knobs.in_place and not self.knobs.streaming
            if plan.level(name) == "element" and plain:
                lines.append(
                    f"__builtin_prefetch({self.names[self.output_access(name)]} + {outputs_ahead}p, 1);"
                )
        if lines:
            self.out.open(f"for (int64_t p = {begin}; p < {end}; p += 16)")
            for line in lines:
                self.out.add(line)
            self.out.close()

    def one_pass(self, stage: Stage) -> None:
        if self.columns:
            self.column_pass(stage)
        else:
            self.row_pass(stage)

    def row_pass(self, stage: Stage) -> None:
        out, plan = self.out, self.plan
        accesses = self.pass_accesses(stage)
        loops = self.nest(stage)
        vector = loops[-1]
        outer = loops[:-1]
        blocked = self.blocked(loops, stage)
        block = "BLOCK" if self.pass_block(stage) == self.block else str(self.pass_block(stage))
        split = bool(outer) or blocked
        for reduction in stage.reductions:
            ctype = self.lane_type(reduction)
            if split and reduction.op == "sum" and ctype == "float":
                out.add(f"double {self.row_name(reduction)}_total = 0.0;")
            else:
                out.add(f"{ctype} {self.row_name(reduction)} = {self.initial(reduction.op, ctype)};")
        variables = ["j", "k", "l", "m", "o", "q"][: len(outer)]
        for variable, loop in zip(variables, outer, strict=True):
            out.open(f"for (int64_t {variable} = 0; {variable} < {loop.size}; ++{variable})")
        if blocked:
            out.open(f"for (int64_t start = 0; start < {vector.size}; start += {block})")
            out.add(f"const int64_t n = std::min<int64_t>({block}, {vector.size} - start);")
        if self.prefetches(stage):
            begin, end = ("start", "start + n") if blocked else ("0", "COLUMNS")
            self.prefetch("COLUMNS + ", begin, end, "")
        indexes: dict[Access | None, str] = {}
        for access in (None, *accesses):
            terms = [_times(v, loop.strides[access]) for v, loop in zip(variables, outer, strict=True)]
            terms = [t for t in terms if t]
            if vector.strides[access]:
                terms += ["start + i" if blocked else "i"]
            indexes[access] = " + ".join(terms)
        addresses: dict[Access, str] = {}
        outputs = {self.output_access(name) for name in stage.stores}
        for access in accesses:
            if access in outputs:
                continue
            if not self.varies_inside(access):
                addresses[access] = self.names[access]
            elif vector.strides[access]:
                addresses[access] = self.load(access, indexes[access])
            else:
                text = f"{self.names[access]}_{variables[-1] if variables else 'i'}"
                out.add(f"const {VALUE[access.dtype]} {text} = {self.load(access, indexes[access] or '0')};")
                addresses[access] = text
        for reduction in stage.reductions:
            if split and reduction.op == "sum" and self.lane_type(reduction) == "float":
                out.add(f"float {self.row_name(reduction)} = 0.0f;")
        streamed = stage.stores if self.knobs.streaming else ()
        for name in streamed:
            out.add(f"alignas(64) {self.storage(name)} {self.statement_names[name]}_block[BLOCK];")
        limit = "n" if plan.mode == "flat" or blocked else self.limit(vector.size)
        self.simd(stage)
        out.open(f"for (int64_t i = 0; i < {limit}; ++i)")
        self.element_body(stage, addresses, indexes, streamed)
        out.close()
        for name in streamed:
            access = self.output_access(name)
            base = indexes[access].removesuffix("start + i").removesuffix("i").removesuffix(" + ")
            target = " + ".join([t for t in (self.names[access], base, "start" if blocked else "") if t])
            block = f"{self.statement_names[name]}_block"
            out.add(f"stream_bytes({target}, {block}, {limit} * sizeof({self.storage(name)}));")
        for reduction in stage.reductions:
            if split and reduction.op == "sum" and self.lane_type(reduction) == "float":
                out.add(f"{self.row_name(reduction)}_total += {self.row_name(reduction)};")
        for _ in range(len(outer) + blocked):
            out.close()
        for reduction in stage.reductions:
            if split and reduction.op == "sum" and self.lane_type(reduction) == "float":
                total = f"{self.row_name(reduction)}_total"
                out.add(f"const float {self.row_name(reduction)} = static_cast<float>({total});")

    def limit(self, size: int) -> str:
        return "COLUMNS" if size == self.plan.row_length else str(size)

    def simd(self, stage: Stage) -> None:
        clauses = []
        for reduction in stage.reductions:
            ctype = self.lane_type(reduction)
            simd = REDUCTIONS[reduction.op].simd
            if "{t}" in simd:
                simd = simd.replace("{t}", SUFFIX[ctype])
                if ctype not in ("float", "double"):
                    simd = "max" if reduction.op == "amax" else "min"
            clauses.append(f" reduction({simd} : {self.row_name(reduction)})")
        self.out.add("#pragma omp simd" + "".join(clauses))

    def element_body(
        self,
        stage: Stage,
        addresses: dict[Access, str],
        indexes: dict[Access | None, str],
        streamed: Iterable[str] = (),
    ) -> None:
        out = self.out
        place = indexes[None]
        self.reload(stage, place)
        for statement in stage.elements:
            text = self.expression(statement, "element", addresses, place)
            out.add(f"const {self.ctype(statement.name)} {self.name(statement)} = {text};")
        for name in stage.keeps:
            out.add(f"{self.kept_name(name)}[{place}] = {self.statement_names[name]};")
        for reduction in stage.reductions:
            ctype = self.lane_type(reduction)
            value = self.operand(reduction.operand, "element", ctype, addresses)
            target = self.row_name(reduction)
            if self.columns:
                target += "[i]"
            out.add(f"{target} = {self.update(reduction.op, ctype, target, value)};")
        for name in stage.stores:
            access = self.output_access(name)
            value = self.stored(name, self.statement_names[name])
            if name in streamed:
                out.add(f"{self.statement_names[name]}_block[i] = {value};")
            else:
                out.add(f"{self.names[access]}[{indexes[access]}] = {value};")

    def reload(self, stage: Stage, place: str) -> None:
        """Kept values that this pass reads."""
        needed: dict[str, None] = {}
        for statement in (*stage.elements, *stage.reductions):
            for view, _ in reads(statement, self.plan.region):
                if view.base in self.kept:
                    needed[view.base] = None
        for name in (*needed, *(s for s in stage.stores if s in self.kept and s not in needed)):
            text = f"{self.kept_name(name)}[{place}]"
            self.out.add(f"const {self.ctype(name)} {self.statement_names[name]} = {text};")

    def stored(self, name: str, text: str) -> str:
        dtype = self.program.dtypes[name]
        return f"{dtype}_store({text})" if dtype in ("bfloat16", "float16") else text

    def column_pass(self, stage: Stage) -> None:
        out, plan = self.out, self.plan
        accesses = self.pass_accesses(stage)
        loops = self.nest(stage)
        two_level = {
            r.name: r.op == "sum" and self.lane_type(r) == "float" and plan.row_length > COLUMN_SUM_BLOCK
            for r in stage.reductions
        }
        for reduction in stage.reductions:
            ctype, name = self.lane_type(reduction), self.row_name(reduction)
            if plan.level(reduction.name) == "scalar":
                out.add(f"alignas(64) {ctype} {name}[BLOCK];")
            if two_level[reduction.name]:
                out.add(f"alignas(64) double {name}_total[BLOCK];")
                out.add(f"for (int64_t i = 0; i < n; ++i) {name}_total[i] = 0.0;")
            initial = self.initial(reduction.op, ctype)
            out.add(f"for (int64_t i = 0; i < n; ++i) {name}[i] = {initial};")
        variables = ["j", "k", "l", "m", "o", "q"][: len(loops)]
        for variable, loop in zip(variables, loops, strict=True):
            out.open(f"for (int64_t {variable} = 0; {variable} < {loop.size}; ++{variable})")
        indexes: dict[Access | None, str] = {}
        addresses: dict[Access, str] = {}
        outputs = {self.output_access(name) for name in stage.stores}
        for access in (None, *accesses):
            terms = [_times(v, loop.strides[access]) for v, loop in zip(variables, loops, strict=True)]
            terms = [t for t in terms if t]
            if access is None:
                place = " + ".join(terms)
                indexes[None] = place
                continue
            if access.strides[-1]:
                indexes[access] = " + ".join([*terms, "i"])
                if access not in outputs:
                    addresses[access] = self.load(access, indexes[access])
            elif not self.varies_inside(access):
                addresses[access] = self.names[access]
            else:
                text = f"{self.names[access]}_{variables[-1]}"
                out.add(f"const {VALUE[access.dtype]} {text} = {self.load(access, ' + '.join(terms))};")
                addresses[access] = text
        self.place = place
        out.add("#pragma omp simd")
        out.open("for (int64_t i = 0; i < n; ++i)")
        self.column_body(stage, addresses, indexes)
        out.close()
        flush = [r for r in stage.reductions if two_level[r.name]]
        if flush:
            period = COLUMN_SUM_BLOCK
            out.open(f"if (({place}) % {period} == {period - 1})")
            for r in flush:
                self.flush(r)
            out.close()
        for _ in loops:
            out.close()
        for r in flush:
            self.flush(r)
            name = self.row_name(r)
            out.add(f"for (int64_t i = 0; i < n; ++i) {name}[i] = static_cast<float>({name}_total[i]);")

    def flush(self, reduction: Reduce) -> None:
        name = self.row_name(reduction)
        self.out.add("#pragma omp simd")
        self.out.open("for (int64_t i = 0; i < n; ++i)")
        self.out.add(f"{name}_total[i] += {name}[i];")
        self.out.add(f"{name}[i] = 0.0f;")
        self.out.close()

    def column_body(
        self, stage: Stage, addresses: dict[Access, str], indexes: dict[Access | None, str]
    ) -> None:
        """As in `row_pass`, except that kept values lie in rows of BLOCK lanes."""
        place = indexes[None]
        kept = {**indexes, None: f"({place}) * BLOCK + i"}
        self.element_body_columns(stage, addresses, kept, place)

    def element_body_columns(
        self,
        stage: Stage,
        addresses: dict[Access, str],
        indexes: dict[Access | None, str],
        place: str,
    ) -> None:
        out = self.out
        self.reload(stage, indexes[None])
        for statement in stage.elements:
            text = self.expression(statement, "element", addresses, place)
            out.add(f"const {self.ctype(statement.name)} {self.name(statement)} = {text};")
        for name in stage.keeps:
            out.add(f"{self.kept_name(name)}[{indexes[None]}] = {self.statement_names[name]};")
        for reduction in stage.reductions:
            ctype = self.lane_type(reduction)
            value = self.operand(reduction.operand, "element", ctype, addresses)
            target = f"{self.row_name(reduction)}[i]"
            out.add(f"{target} = {self.update(reduction.op, ctype, target, value)};")
        for name in stage.stores:
            access = self.output_access(name)
            value = self.stored(name, self.statement_names[name])
            out.add(f"{self.names[access]}[{indexes[access]}] = {value};")

    def pick(self, statement: Reduce) -> None:
        """The operand at one place of the row, computed for that place alone."""
        out, plan = self.out, self.plan
        assert statement.index is not None
        at = f"{self.name(statement)}_at"
        index = self.operand(statement.index, "row", "int64_t", self.row_addresses(statement))
        ctype = self.ctype(statement.name)
        out.add(f"const int64_t {at} = {index};")
        out.add(f"{ctype} {self.name(statement)} = {'NAN' if ctype in ('float', 'double') else '0'};")
        out.open(f"if ({at} >= 0 && {at} < COLUMNS)")
        by_name = {s.name: s for s in plan.region.statements if plan.level(s.name) == "element"}
        needed = closure([statement.operand.base], by_name, self.kept)
        elements = [s for n, s in by_name.items() if n in needed and isinstance(s, Compute)]
        addresses: dict[Access, str] = {}
        for s in (*elements, statement):
            for view, level in reads(s, plan.region):
                access = plan.access(view, level)
                if access is not None and level == "element":
                    addresses[access] = self.load(access, self.inner_offset(access, at))
        for name in self.kept:
            if any(v.base == name for s in (*elements, statement) for v, _ in reads(s, plan.region)):
                text = f"{self.kept_name(name)}[{at}]"
                out.add(f"const {self.ctype(name)} {self.statement_names[name]} = {text};")
        for s in elements:
            text = self.expression(s, "element", addresses, at)
            out.add(f"const {self.ctype(s.name)} {self.name(s)} = {text};")
        value = self.operand(statement.operand, "element", ctype, addresses)
        out.add(f"{self.name(statement)} = {value};")
        out.close()

    def inner_offset(self, access: Access, variable: str) -> str:
        if not self.varies_inside(access):
            return ""
        loops = self.plan.nest([access], inside=True)
        terms, inner = [], self.plan.row_length
        for position, loop in enumerate(loops):
            inner //= loop.size
            text = variable if inner == 1 else f"{variable} / {inner}"
            text = text if position == 0 else f"{text} % {loop.size}"
            terms.append(_times(text, loop.strides[access]))
        return " + ".join(t for t in terms if t)

    # Reductions.

    def lane_type(self, reduction: Reduce) -> str:
        ctype = self.ctype(reduction.name)
        return ctype

    def row_name(self, reduction: Reduce) -> str:
        """What a pass reduces into; a scalar's share of one row has a name of its own."""
        name = self.name(reduction)
        return f"{name}_row" if self.plan.level(reduction.name) == "scalar" else name

    def part_type(self, total: Reduce) -> str:
        ctype = self.ctype(total.name)
        return "double" if total.op in ("sum", "prod") and ctype == "float" else ctype

    def initial(self, op: str, ctype: str) -> str:
        if op == "amax":
            return LOWEST[ctype]
        if op in ("amin", "first"):
            return HIGHEST[ctype]
        return (
            literal(float(REDUCTIONS[op].initial), ctype) if op in ("sum", "prod") else REDUCTIONS[op].initial
        )

    def update(self, op: str, ctype: str, target: str, value: str) -> str:
        text = REDUCTIONS[op].update.replace("{t}", SUFFIX[ctype])
        return text.replace("{a}", target).replace("{v}", value)

    # After the row.

    def row_outputs(self) -> None:
        out, plan = self.out, self.plan
        rows = [o for o in plan.outputs if plan.level(o) == "row"]
        if rows and self.columns:
            out.open("for (int64_t i = 0; i < n; ++i)")
        for name in rows:
            access = self.output_access(name)
            if self.columns:
                out.add(f"{self.names[access]}[i] = {self.stored(name, self.value(name))};")
            else:
                out.add(f"{self.pointers[name]}[row] = {self.stored(name, self.statement_names[name])};")
        if rows and self.columns:
            out.close()

    def total_parts(self) -> None:
        out, plan = self.out, self.plan
        for total in plan.totals:
            part, ctype = f"{self.name(total)}_part", self.part_type(total)
            view, level = reads(total, plan.region)[0]
            if level == "element":
                value = self.row_name(total) + ("[i]" if self.columns else "")
            else:
                value = self.operand(view, "row", self.ctype(total.name), self.row_addresses(total))
            update = f"{part} = {self.update(total.op, ctype, part, value)};"
            out.add(f"for (int64_t i = 0; i < n; ++i) {update}" if self.columns else update)

    def finish(self) -> None:
        out, plan = self.out, self.plan
        for total in plan.totals:
            name, ctype = self.name(total), self.part_type(total)
            out.add(f"{ctype} {name}_total = {name}_parts[0];")
            update = self.update(total.op, ctype, f"{name}_total", f"{name}_parts[chunk]")
            out.add(f"for (int64_t chunk = 1; chunk < CHUNKS; ++chunk) {name}_total = {update};")
            out.add(
                f"const {self.ctype(total.name)} {name} = static_cast<{self.ctype(total.name)}>({name}_total);"
            )
        for statement in plan.scalars:
            addresses = {
                access: self.names[access]
                for view, level in reads(statement, plan.region)
                if (access := plan.access(view, level)) is not None
            }
            assert isinstance(statement, Compute)
            text = self.expression(statement, "scalar", addresses)
            out.add(f"const {self.ctype(statement.name)} {self.name(statement)} = {text};")
        for name in plan.outputs:
            if plan.level(name) == "scalar":
                out.add(f"{self.pointers[name]}[0] = {self.stored(name, self.statement_names[name])};")


def _times(text: str, stride: int) -> str:
    if stride == 0:
        return ""
    if stride == 1:
        return text
    return f"{text} * {stride}"
