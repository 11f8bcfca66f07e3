"""The Triton text of one planned kernel: names, values, statements, totals. A program works on a tile.

What belongs to an element has the shape of the tile, what belongs to a row that of one of its columns, and
what never varies is a scalar. The emitters in `tiles.py` say where elements are.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kernelwright.agent.builtin.codegen.backend import named
from kernelwright.agent.builtin.codegen.gpu import GridKernel, Parts, taken
from kernelwright.agent.builtin.codegen.triton.types import (
    BUILTIN,
    HIGHEST,
    LOWEST,
    VALUE,
    PythonLines,
    is_negative_zero,
    literal,
    value_type,
)
from kernelwright.agent.builtin.ir.expression import (
    X0,
    X1,
    Call,
    Const,
    Expression,
    Lookup,
    Position,
    X,
    walk,
    written,
)
from kernelwright.agent.builtin.ir.ops import FLOATS, REDUCTIONS
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Fused,
    Operand,
    Program,
    Reduce,
    Scan,
    View,
)
from kernelwright.agent.builtin.ir.space import Level
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.agent.builtin.scheduling.passes import reads
from kernelwright.kernelbench.free_sizes.size import is_free

Masks: TypeAlias = tuple[str, ...]  # conditions on elements, all of which are to hold; none: all are there
Shape = Literal["scalar", "row", "tile"]
_ORDER: tuple[Shape, ...] = ("scalar", "row", "tile")


@dataclass(frozen=True)
class TritonKnobs:
    """The schedule of one kernel, in its own types."""

    block: int  # elements of a row that are worked on at once
    rows: int  # worked on at once
    warps: int
    beside: bool = False  # launched together with other kernels, which have programs of their own
    parts: int = 1024  # programs that find a share each of what is reduced to a scalar
    stages: int = 0  # of loops whose loads are under way at a time; 0: Triton's own number

    @property
    def program(self) -> str:
        """Number of a program among those of the kernel, as an expression."""
        return "program" if self.beside else "tl.program_id(0)"


class TritonEmitter(ABC):
    rank: int  # axes of a tile

    def __init__(
        self,
        plan: Plan,
        program: Program,
        knobs: TritonKnobs,
        pointers: Mapping[str, str],
        reserved: frozenset[str],
    ) -> None:
        """`pointers` gives the parameter name of every external base and output, in order."""
        self.plan = plan
        self.program = program
        self.knobs = knobs
        self.pointers = {base: f"{pointer}_ptr" for base, pointer in pointers.items()}
        self.out = PythonLines()
        self.reserved = reserved
        self.taken = {*self.pointers.values(), *plan.arguments, *program.graph.free}
        self.statements = {s.name: self.fresh(s.name) for s in plan.region.statements}
        self.shapes: dict[str, Shape] = {}  # of the values that have a name
        self.loaded: dict[Access, str] = {}  # what is at hand, by its name
        self.named: dict[Access, str] = {}
        self.before: dict[str, str] = {}  # what values were a step before, by their names

    def kernel(self, name: str) -> GridKernel:
        plan, out = self.plan, self.out
        parts = [self.part_type(r) for r in plan.totals] if self.several else []
        inside = [s for s in plan.region.statements if s not in plan.scalars]
        self.load_before(access for access in self.read_by(inside) if not access.varies)
        most = self.knobs.parts if is_free(self.grid) else min(self.grid, self.knobs.parts)
        programs = most if parts else self.grid
        if parts:
            for reduction, dtype in zip(plan.totals, parts, strict=True):
                first = literal(*self.neutral(reduction.op, dtype))
                out.add(f"{self.part_name(reduction)} = tl.full([1], {first}, {VALUE[dtype]})")
            out.open(f"for block in range({self.knobs.program}, {self.grid}, {programs})")
            self.body("block")
            out.close()
            for number, reduction in enumerate(plan.totals):
                out.add(
                    f"tl.store(parts_{number}_ptr + {self.knobs.program} + tl.arange(0, 1), "
                    f"{self.part_name(reduction)})"
                )
        else:
            self.body(self.knobs.program)
        body = self.out
        if parts:
            self.out = PythonLines()
            self.join(parts, programs)
        self.scalars()
        joins = None
        free = named(self.program.graph.free, [*body.lines, *self.out.lines])
        for lines in (body.lines, self.out.lines) if parts else (body.lines,):
            # Their products may need more than 32 bits.
            lines[:0] = [f"    {name} = tl.full([], {name}, tl.int64)" for name in named(free, lines)]
        if parts:
            names = tuple(f"parts_{number}_ptr" for number in range(len(parts)))
            shares = taken(plan, self.pointers, (self.read_by(inside), self.read_by(plan.scalars)), free)
            joins = Parts(tuple(parts), tuple(self.out.lines), self.knobs.warps, shares, (names, names))
        return GridKernel(
            name,
            (*self.pointers.values(), *plan.arguments, *free, *(["program"] if self.knobs.beside else [])),
            tuple(body.lines),
            self.loop_style,
            grid=programs,
            width=self.knobs.warps,
            stages=self.knobs.stages,
            parts=joins,
            free=free,
        )

    # What differs between the kinds of tiles.

    @property
    @abstractmethod
    def grid(self) -> int:
        """Tiles; each is a program's, unless there are totals, for which programs take several."""

    @property
    def several(self) -> bool:
        """True if there may be more than one tile."""
        return is_free(self.grid) or self.grid > 1

    @property
    def loop_style(self) -> str:
        return self.plan.passes

    @property
    @abstractmethod
    def tile(self) -> str:
        """The shape of a tile, as text."""

    @abstractmethod
    def body(self, block: str) -> None:
        """Write the work on one tile, of the number `block`."""

    @abstractmethod
    def offset(self, access: Access) -> tuple[str, Masks, Shape]:
        """Offset of an access's tile, masks of the elements that exist, and the tile's shape."""

    @property
    @abstractmethod
    def axis(self) -> int:
        """The axis of a tile along which rows lie."""

    @property
    @abstractmethod
    def index(self) -> str:
        """The index of elements in their rows."""

    @abstractmethod
    def present(self) -> Masks:
        """Masks of the elements of a tile that exist; none if all do."""

    @property
    def far(self) -> bool:
        """True if an offset may need more than 32 bits."""
        plan = self.plan
        sizes = [self.program.shapes[a.base] for a in plan.accesses.values()]
        sizes += [self.program.shapes[name] for name in plan.outputs if name in self.program.shapes]
        counts = [plan.region.space.numel, *map(math.prod, sizes)]
        return is_free(*counts) or max(counts) >= 1 << 31

    def many(self, number: int) -> str:
        """Return a factor of indices."""
        return f"tl.full([], {number}, tl.int64)" if self.far else str(number)

    # Names and values.

    def fresh(self, name: str) -> str:
        text = re.sub(r"\W", "_", name)
        while text in self.reserved or text in self.taken:
            text += "_"
        self.taken.add(text)
        return text

    def load(self, access: Access) -> str:
        """Return the name of an external value."""
        if access not in self.loaded:
            where, masks, shape = self.offset(access)
            pointer = self.pointers[access.base]
            if access not in self.named:
                self.named[access] = self.fresh(pointer.removesuffix("_ptr"))
            name = self.loaded[access] = self.named[access]
            if shape == "scalar":  # a tile of one: the interpreter takes conditions on scalars for numbers
                where = total([where, "tl.arange(0, 1)" + ("[None, :]" if self.rank > 1 else "")])
            cast = ".to(tl.float32)" if access.dtype in SMALL_FLOATS else ""
            at = total([pointer, where])
            self.out.add(f"{name} = tl.load({at}{masked(masks)}){cast}")
            self.shapes[name] = shape
        return self.loaded[access]

    def read_by(self, statements: Sequence[Fused]) -> list[Access]:
        """Return the accesses of memory that statements make."""
        found = (
            self.plan.access(view, level) for s in statements for view, level in reads(s, self.plan.region)
        )
        return [access for access in dict.fromkeys(found) if access is not None]

    def load_before(self, accesses: Iterable[Access]) -> None:
        """Load what a loop reads again and again."""
        for access in list(accesses):
            if not access.table:
                self.load(access)

    def operand(self, operand: Operand, level: Level, wanted: str) -> tuple[str, Shape]:
        """Return an operand as an expression of the dtype `wanted`."""
        if isinstance(operand, Constant):
            return literal(operand.value, wanted), "scalar"
        access = self.plan.access(operand, level)
        if access is not None:
            name, dtype = self.load(access), access.dtype
        else:
            name, dtype = self.statements[operand.base], self.program.dtypes[operand.base]
        text = name
        if wanted == "bool" and dtype != "bool":
            text = f"({name} != 0)"
        elif VALUE[wanted] != VALUE[dtype]:
            text = f"{name}.to({VALUE[wanted]})"
        return text, self.shapes[name]

    def define(self, statement: Compute, level: Level) -> None:
        if isinstance(statement.expression, Lookup):
            self.take(statement, level)
            return
        dtype = value_type(statement.compute_dtype)
        tree = statement.expression
        nodes = list(walk(tree))
        read = {node.number: node.dtype or dtype for node in nodes if isinstance(node, X)}
        placed = {node.kind for node in nodes if isinstance(node, Position)}
        apart = {node.number for node in nodes if isinstance(node, X) and node.dtype}
        beside = [o for n, o in enumerate(statement.operands) if n not in apart]
        typed = bool(read or placed) and any(not isinstance(o, Constant) for o in beside)

        def number(value: float | int | bool, dtype: str) -> str:
            """Literal of the given dtype, where nothing beside it determines the dtype."""
            if typed or is_negative_zero(value):
                return literal(value, dtype)
            plain = literal(value, "float32" if dtype in FLOATS else dtype)
            return f"tl.full({[1] * self.rank}, {plain}, {VALUE[dtype]})"

        texts = {"index": self.index, "first step": "step == 0"}
        shapes: list[Shape] = ["tile" if "index" in placed else "scalar"]
        if "before" in placed:
            assert self.plan.region.recurrence is not None
            texts["before"] = self.kept_name(self.plan.region.recurrence.becomes[statement.name])
            shapes.append("row" if level == "row" else "tile")
        values = {}
        for position, wanted in sorted(read.items()):
            operand = statement.operands[position]
            values[position], shape = self.operand(operand, level, wanted)
            if isinstance(operand, Constant) and wanted == dtype:
                values[position] = number(operand.value, dtype)
            shapes.append(shape)

        def leaf(node: Expression) -> str:
            match node:
                case X():
                    return values[node.number]
                case Const():
                    return number(node.value, node.dtype or dtype)
                case Position():
                    return texts[node.kind]
            raise AssertionError("a table is read by `take`")

        name = self.statements[statement.name]
        self.out.add(f"{name} = {written(tree, leaf, function_name)}")
        self.shapes[name] = max(shapes, key=_ORDER.index)

    def take(self, statement: Compute, level: Level) -> None:
        table, index = statement.operands
        assert isinstance(table, View) and isinstance(index, View)
        source, counts = self.plan.access(table, level), self.plan.access(index, level)
        assert source is not None
        at, other = self.operand(index, level, "int64" if self.far else self.program.dtypes[index.base])
        (where, masks, shape), others = self.offset(source), self.present()
        if counts is not None:
            others = self.offset(counts)[1]
        where = total([where, at if source.table == 1 else f"{at} * {source.table}"])
        name, cast = (
            self.statements[statement.name],
            ".to(tl.float32)" if source.dtype in SMALL_FLOATS else "",
        )
        mask = masked(tuple(dict.fromkeys((*others, *masks))))
        self.out.add(f"{name} = tl.load({self.pointers[table.base]} + {where}{mask}){cast}")
        self.shapes[name] = max(shape, other, key=_ORDER.index)

    def kept_name(self, name: str) -> str:
        if name not in self.before:
            self.before[name] = self.fresh(f"{self.statements[name]}_before")
        return self.before[name]

    def store(self, output: str) -> None:
        where, masks, shape = self.offset(self.plan.output(output))
        one = "tl.arange(0, 1)" + ("[None, :]" if self.rank > 1 else "") if shape == "scalar" else ""
        pointer = total([self.pointers[output], where, one])
        self.out.add(f"tl.store({pointer}, {self.statements[output]}{masked(masks)})")

    # Reductions.

    def neutral(self, op: str, dtype: str) -> tuple[float | int | bool, str]:
        """Neutral element of a reduction, with its dtype."""
        initial = REDUCTIONS[op].initial
        if not isinstance(initial, str):
            return initial, dtype
        lowest = initial == "lowest"
        if value_type(dtype) in ("float32", "float64"):
            return float("-inf" if lowest else "inf"), dtype
        return int((LOWEST if lowest else HIGHEST)[dtype]), dtype

    def reduced(self, op: str, text: str, dtype: str, axis: int) -> str:
        """Expression for the reduction of a tile along an axis, which is kept."""
        floating = value_type(dtype) in ("float32", "float64")
        if op == "sum":
            return f"tl.sum({text}, {axis}, keep_dims=True)"
        if op == "prod":
            return f"tl.reduce({text}, {axis}, product, keep_dims=True)"
        if op in ("any", "all"):
            extreme = "max" if op == "any" else "min"
            return f"(tl.{extreme}({text}.to(tl.int32), {axis}, keep_dims=True) > 0)"
        if floating and op in ("amax", "amin"):
            return f"{op}_of({text}, {axis})"
        return f"tl.{'max' if op == 'amax' else 'min'}({text}, {axis}, keep_dims=True)"

    def update(self, op: str, a: str, b: str) -> str:
        texts: dict[Expression, str] = {X0: a, X1: b}
        return written(REDUCTIONS[op].update, texts.__getitem__, function_name)

    def element(self, statement: Reduce | Scan) -> str:
        """Operand of a reduction or scan in the shape of a tile; the neutral element where nothing exists."""
        level: Level = reads(statement, self.plan.region)[0][1]
        text, shape = self.operand(statement.operand, level, statement.dtype)
        if shape != "tile":
            text = f"tl.broadcast_to({text}, {self.tile})"
        masks = self.present()
        if masks:
            rest = literal(*self.neutral(statement.op, statement.dtype))
            text = f"tl.where({' & '.join(masks)}, {text}, {rest})"
        return text

    def part_name(self, reduction: Reduce) -> str:
        return f"{self.statements[reduction.name]}_part"

    def part_type(self, reduction: Reduce) -> str:
        """Dtype of partial results: long sums of floats are in double, as torch's are on the CPU."""
        dtype = value_type(reduction.dtype)
        return "float64" if dtype == "float32" and reduction.op in ("sum", "prod") else dtype

    def add_to_total(self, reduction: Reduce, text: str) -> None:
        """`text`: what the tile reduces to, of one element."""
        text = f"tl.reshape({text}, [1])"
        if not self.several:
            self.out.add(f"{self.statements[reduction.name]} = {text}")
            return
        part, dtype = self.part_name(reduction), self.part_type(reduction)
        if dtype != value_type(reduction.dtype):
            text += f".to({VALUE[dtype]})"
        self.out.add(f"{part} = {self.update(reduction.op, part, text)}")

    def join(self, parts: Sequence[str], programs: int) -> None:
        """Take the parts together, in order."""
        size = 1 << (programs - 1).bit_length()
        self.out.add(f"part = tl.arange(0, {size})")
        for number, (reduction, dtype) in enumerate(zip(self.plan.totals, parts, strict=True)):
            text = f"tl.load(parts_{number}_ptr + part)"
            if size > programs:
                rest = literal(*self.neutral(reduction.op, dtype))
                text = f"tl.load(parts_{number}_ptr + part, mask=part < {programs}, other={rest})"
            text = self.reduced(reduction.op, text, dtype, 0)
            if dtype != value_type(reduction.dtype):
                text += f".to({VALUE[reduction.dtype]})"
            self.out.add(f"{self.statements[reduction.name]} = {text}")

    def scalars(self) -> None:
        """Write the statements and outputs that follow from totals."""
        self.loaded, self.named, self.rank = {}, {}, 1
        for reduction in self.plan.totals:
            self.shapes[self.statements[reduction.name]] = "scalar"
        for statement in self.plan.scalars:
            assert isinstance(statement, Compute)
            self.define(statement, "scalar")
        lead = f", mask={self.knobs.program} + tl.arange(0, 1) == 0"
        once = "" if not self.several or self.plan.totals else lead
        for name in self.plan.outputs:
            if self.plan.level(name) == "scalar":
                pointer, value = f"{self.pointers[name]} + tl.arange(0, 1)", self.statements[name]
                self.out.add(f"tl.store({pointer}, {value}{once})")

    # Statements in order, where all of a row is at hand.

    def in_order(self) -> None:
        plan = self.plan
        needed = {s.name for stage in plan.stages for s in (*stage.row, *stage.in_pass)}
        for statement in plan.region.statements:
            if statement.name in needed:
                self.execute(statement)
        outputs = [name for name in plan.outputs if plan.level(name) != "scalar"]
        for name in outputs:
            self.store(name)

    def execute(self, statement: Fused) -> None:
        level = self.plan.level(statement.name)
        if isinstance(statement, Compute):
            if level != "scalar":
                self.define(statement, level)
        elif isinstance(statement, Scan):
            name, text = self.statements[statement.name], self.element(statement)
            self.out.add(f"{name} = tl.cum{statement.op}({text}, {self.axis})")
            self.shapes[name] = "tile"
        elif statement.op == "pick":
            self.pick(statement)
        else:
            self.reduce(statement)

    @abstractmethod
    def reduce(self, statement: Reduce) -> None: ...

    @abstractmethod
    def pick(self, statement: Reduce) -> None:
        """Compute the operand at one place of the row, for that place alone; NaN outside the row."""

    def steps(self) -> None:
        """Write a recurrence: the statements in a loop, with what a step carries to the next."""
        recurrence, plan = self.plan.region.recurrence, self.plan
        assert recurrence is not None
        for name in plan.carried:
            dtype = VALUE[plan.statements[name].dtype]
            self.out.add(f"{self.kept_name(name)} = tl.zeros({self.carried_shape(name)}, {dtype})")
        self.load_before(a for a in self.read_by(plan.region.statements) if not a.move)
        self.out.open(f"for step in range({recurrence.steps})")
        self.in_order()
        for name in plan.carried:
            value = f"tl.broadcast_to({self.statements[name]}, {self.carried_shape(name)})"
            self.out.add(f"{self.kept_name(name)} = {value}")
        self.out.close()

    @abstractmethod
    def carried_shape(self, name: str) -> str: ...

    def moved(self, access: Access) -> list[str]:
        """Return the part of an offset that is the same for the whole tile."""
        found = [f"step * {self.many(access.move)}"] if access.move else []
        return [*found, access.begin] if access.begin else found


def function_name(call: Call) -> str:
    return BUILTIN.get(call.function, call.function)


def masked(masks: Masks) -> str:
    return f", mask={' & '.join(masks)}" if masks else ""


def digits(plan: Plan, access: Access, axes: Sequence[int], variable: str) -> str:
    """Return the offset of an access along axes, by their joint index; empty where it does not vary."""
    terms = []
    for digit in plan.digits(access.strides, axes):
        text = variable if digit.product == 1 else f"{variable} // {digit.product}"
        text = text if digit.first else f"{text} % {digit.size}"
        terms.append(text if digit.stride == 1 else f"{text} * {digit.stride}")
    return total(terms)
