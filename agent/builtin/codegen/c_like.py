"""Statements as the text of a language like C: names, addresses, operands, right-hand sides.

C++ and CUDA C++ share them; what differs between the two is their `CTypes`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

from kernelwright.agent.builtin.ir import text
from kernelwright.agent.builtin.ir.expression import (
    X0,
    X1,
    Call,
    Const,
    Expression,
    Lookup,
    Position,
    X,
    written,
)
from kernelwright.agent.builtin.ir.ops import REDUCTIONS
from kernelwright.agent.builtin.ir.program import Compute, Constant, Fused, Operand, Program, Reduce, Scan
from kernelwright.agent.builtin.ir.space import Level
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.agent.builtin.scheduling.passes import Stage, closure, reads
from kernelwright.kernelbench.free_sizes.size import is_free


class BracedLines(text.Lines):
    """Lines with braces."""

    def open(self, head: str) -> None:
        self.add(f"{head} {{" if head else "{")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.add("}")


@dataclass(frozen=True)
class CTypes:
    storage: Mapping[str, str]  # the type of what lies in memory, by dtype
    value: Mapping[str, str]  # the type of what is computed with, by dtype
    lowest: Mapping[str, str]  # by type
    highest: Mapping[str, str]
    reserved: frozenset[str]
    integer: Callable[[float, str], str]  # a number of a type of integers, for which floats are cut
    function: Callable[[str, str], str]  # the name of a function for a type
    loaded: Callable[[str, str], str]  # an expression for what lies in memory, of a dtype, as a value
    stored: Callable[[str, str], str]  # the other way round

    def literal(self, value: float | int | bool, ctype: str) -> str:
        """A number of a type."""
        if is_free(value):
            return f"static_cast<{ctype}>({value!r})"
        if ctype == "bool":
            return "true" if value else "false"
        if ctype not in ("float", "double"):
            return self.integer(value, ctype)
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        return repr(float(value)) + ("f" if ctype == "float" else "")


@dataclass(frozen=True)
class Element:
    """Place of an element: its index in its row, and in the buffer of a value that the row keeps."""

    index: str = ""
    kept: str = ""


NOWHERE = Element()
AT = "{at}"  # the index, in the text of an element of a table


def in_c(size: str) -> str:
    """Return the text of a size in C++, which rounds quotients down as Python does: none is negative.

    >>> in_c("((rows + 7) // 8)")
    '((rows + 7) / 8)'
    """
    return size.replace(" // ", " / ")


class CLikeCodegen(ABC):
    vocabulary: ClassVar[CTypes]

    def __init__(self, plan: Plan, program: Program, pointers: Mapping[str, str]) -> None:
        """`pointers` gives the parameter name of every external base and output, in order."""
        self.plan = plan
        self.program = program
        self.pointers = pointers
        self.out = BracedLines()
        self.names: dict[Access, str] = {}  # of a row's pointer, or of the value where it does not vary
        self.taken: set[str] = {*pointers.values(), *plan.arguments, *program.graph.free}
        self.statements = {s.name: self.fresh(s.name) for s in plan.region.statements}
        self.kept: set[str] = set()  # values that an earlier pass has left in a buffer, or in registers

    # Names and types.

    def fresh(self, name: str) -> str:
        found = re.sub(r"\W", "_", name)
        while found in self.vocabulary.reserved or found in self.taken:
            found += "_"
        self.taken.add(found)
        return found

    def name(self, statement: Fused) -> str:
        return self.statements[statement.name]

    def ctype(self, name: str) -> str:
        return self.vocabulary.value[self.program.dtypes[name]]

    def kept_name(self, name: str) -> str:
        return f"{self.statements[name]}_kept"

    def part_type(self, reduction: Reduce) -> str:
        ctype = self.ctype(reduction.name)
        return "double" if reduction.op in ("sum", "prod") and ctype == "float" else ctype

    def scan_type(self, statement: Scan) -> str:
        """Type of the running value: floats are summed in double, as in torch."""
        ctype = self.ctype(statement.name)
        return "double" if ctype == "float" else ctype

    # Sizes and addresses.

    @property
    @abstractmethod
    def whole(self) -> str:
        """The type of indices."""

    def define_sizes(self, **sizes: int) -> None:
        """Define sizes; those that are free on lines of their own, as the compiler does not know them."""
        for name, size in sizes.items():
            if is_free(size):
                self.out.add(f"const {self.whole} {name} = {in_c(repr(size))};")
        fixed = [f"{name} = {size}" for name, size in sizes.items() if not is_free(size)]
        if fixed:
            self.out.add(f"constexpr {self.whole} {', '.join(fixed)};")

    def outside(self, access: Access, axes: Sequence[int], variable: str) -> list[str]:
        """Terms of the offset along `axes`, for their joint index `variable`."""
        terms = []
        for digit in self.plan.digits(access.strides, axes):
            index = variable if digit.product == 1 else f"{variable} / {digit.product}"
            index = index if digit.first else f"{index} % {digit.size}"
            terms.append(times(index, digit.stride))
        return terms

    def element(self, access: Access, name: str, terms: Sequence[str]) -> str:
        """Return an element of what `name` points to; of a table, with the index yet to be filled in."""
        where = total([*terms, times(AT, access.table)])
        return self.loaded(access, f"{name}[{where or '0'}]")

    def loaded(self, access: Access, text: str) -> str:
        return self.vocabulary.loaded(text, access.dtype)

    def stored(self, name: str, text: str) -> str:
        return self.vocabulary.stored(text, self.program.dtypes[name])

    # Right-hand sides.

    @property
    @abstractmethod
    def row_place(self) -> str:
        """The index of a row's value in what is carried from step to step."""

    @abstractmethod
    def value(self, name: str) -> str:
        """Expression that reads a value that the kernel has computed."""

    def operand(self, operand: Operand, level: Level, wanted: str, addresses: Mapping[Access, str]) -> str:
        """Return an operand as an expression of type `wanted`."""
        if isinstance(operand, Constant):
            return self.vocabulary.literal(operand.value, wanted)
        access = self.plan.access(operand, level)
        if access is not None:
            found, ctype = addresses[access], self.vocabulary.value[access.dtype]
        else:
            found, ctype = self.value(operand.base), self.ctype(operand.base)
        return found if ctype == wanted else f"static_cast<{wanted}>({found})"

    def expression(
        self,
        statement: Compute,
        level: Level,
        addresses: Mapping[Access, str],
        place: Element = NOWHERE,
    ) -> str:
        """Return the statement's right-hand side."""
        words = self.vocabulary

        def ctype(dtype: str) -> str:
            return words.value[dtype or statement.compute_dtype]

        def leaf(node: Expression) -> str:
            match node:
                case X():
                    operand = statement.operands[node.number]
                    return self.operand(operand, level, ctype(node.dtype), addresses)
                case Const():
                    return words.literal(node.value, ctype(node.dtype))
                case Lookup():
                    return leaf(node.table).replace(AT, leaf(node.index))
                case Position(kind="index"):
                    return f"static_cast<{words.value['int32']}>({place.index})"
                case Position(kind="before"):
                    return self.before(statement, level, place)
            return "step == 0"

        def function(node: Call) -> str:
            return words.function(node.function, ctype(node.dtype)) if node.overloaded else node.function

        return written(statement.expression, leaf, function)

    def before(self, statement: Compute, level: Level, place: Element) -> str:
        """Expression that reads a value of the step before."""
        assert self.plan.region.recurrence is not None
        source = self.plan.region.recurrence.becomes[statement.name]
        return f"{self.kept_name(source)}[{place.kept if level == 'element' else self.row_place}]"

    def define(
        self,
        statement: Compute,
        level: Level,
        addresses: Mapping[Access, str],
        place: Element = NOWHERE,
    ) -> None:
        found = self.expression(statement, level, addresses, place)
        self.out.add(f"const {self.ctype(statement.name)} {self.name(statement)} = {found};")

    # The elements of a row.

    @abstractmethod
    def scan(self, statement: Scan, addresses: Mapping[Access, str]) -> None:
        """Define a scan's value at an element, which adds to the running value."""

    def varies_in_row(self, access: Access) -> bool:
        return any(stride for stride, inside in zip(access.strides, self.plan.inner, strict=True) if inside)

    def element_values(self, stage: Stage, addresses: Mapping[Access, str], place: Element) -> None:
        """Add a pass's statements for one element: reads of kept values, results, new kept values."""
        read = [view.base for s in stage.in_pass for view, _ in reads(s, self.plan.region)]
        for name in dict.fromkeys([*read, *stage.stores]):
            if name in self.kept:
                self.define_kept(name, place.kept)
        for statement in stage.elements:
            if isinstance(statement, Scan):
                self.scan(statement, addresses)
            else:
                self.define(statement, "element", addresses, place)
        for name in stage.keeps:
            self.out.add(f"{self.kept_name(name)}[{place.kept}] = {self.statements[name]};")

    def define_kept(self, name: str, place: str) -> None:
        text = f"{self.kept_name(name)}[{place}]"
        self.out.add(f"const {self.ctype(name)} {self.statements[name]} = {text};")

    def pick(self, statement: Reduce, length: str, kept: Set[str]) -> None:
        """Add the operand at one place of the row, computed for that place alone; NaN outside the row.

        `length`: elements of the row; `kept`: values that can be read at any of them.
        """
        out, plan = self.out, self.plan
        assert statement.index is not None
        at, ctype, whole = (
            f"{self.name(statement)}_at",
            self.ctype(statement.name),
            self.vocabulary.value["int64"],
        )
        out.add(f"const {whole} {at} = {self.operand(statement.index, 'row', whole, self.names)};")
        out.add(f"{ctype} {self.name(statement)} = {'NAN' if ctype in ('float', 'double') else '0'};")
        out.open(f"if ({at} >= 0 && {at} < {length})")
        by_name = {s.name: s for s in plan.region.statements if plan.level(s.name) == "element"}
        needed = closure([statement.operand.base], by_name, set(kept))
        elements = [s for name, s in by_name.items() if name in needed and isinstance(s, Compute)]
        addresses: dict[Access, str] = {}
        read: list[Fused] = [*elements, statement]
        for s in read:
            for view, level in reads(s, plan.region):
                access = plan.access(view, level)
                if access is not None and level == "element":
                    addresses[access] = self.element_at(access, at)
                if view.base in kept:
                    self.define_kept(view.base, at)
        for element in elements:
            self.define(element, "element", addresses, Element(at, at))
        value = self.operand(statement.operand, "element", ctype, addresses)
        out.add(f"{self.name(statement)} = {value};")
        out.close()

    def element_at(self, access: Access, at: str) -> str:
        if not self.varies_in_row(access):
            return self.names[access]
        axes = [axis for axis, inside in enumerate(self.plan.inner) if inside]
        return self.element(access, self.names[access], self.outside(access, axes, at))

    # Reductions.

    def initial(self, op: str, ctype: str) -> str:
        """Neutral element of a reduction, as a literal."""
        initial = REDUCTIONS[op].initial
        if initial == "lowest":
            return self.vocabulary.lowest[ctype]
        if initial == "highest":
            return self.vocabulary.highest[ctype]
        return self.vocabulary.literal(initial, ctype)

    def update(self, op: str, ctype: str, target: str, value: str) -> str:
        def function(call: Call) -> str:
            return self.vocabulary.function(call.function, ctype)

        texts: dict[Expression, str] = {X0: target, X1: value}
        return written(REDUCTIONS[op].update, texts.__getitem__, function)
