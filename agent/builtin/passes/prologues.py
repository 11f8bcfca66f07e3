"""Prologues of products: what an operand is computed from, where it is cheap, is computed where it is read.

With x of [512, 256] in bfloat16 and w of [128, 256] in int8, the task

    return F.linear(x, w.to(torch.bfloat16) * scale)

writes the weights again, in two bytes each, before the product reads them. Here the product's kernel reads
the bytes and converts them, tile by tile:

    %to = convert(%w[512×0, 128×256, 256]) : bfloat16[512, 128, 256]
    %mul = mul(%to[512, 128, 256], %scale[512×0, 128×0, 256×0]) : bfloat16[512, 128, 256]
    %linear_products = mul(%x[512, 128×0, 256], %mul[512, 128, 256]) : float32[512, 128, 256]

These values, as large as the product's iteration space, are those of tiles and never in memory.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.agent.builtin.ir.ops import POINTWISE
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Operand,
    Program,
    Statement,
    View,
    composed,
    contiguous,
)
from kernelwright.agent.builtin.ir.uses import Uses

_COST = 12  # additions that an element may take, which each tile that reads it computes again; chosen by hand


def prologues(program: Program) -> Program:
    """Compute operands of products where they are read, if nothing else reads them."""
    inlining = _Inlining(program.copy())
    inlining.run()
    return inlining.program if inlining.found else program


class _Inlining:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = Uses(program)
        self.by_name: dict[str, Statement] = {s.name: s for s in program.statements}
        self.found = False

    def run(self) -> None:
        statements: list[Statement] = []
        for statement in self.program.statements:
            if isinstance(statement, Compute) and self.program.roles.get(statement.name) == "product":
                made: list[Compute] = []
                read = tuple(self.inlined(o, statement, made) for o in statement.operands)
                statements += made
                self.found |= bool(made)
                statement = replace(statement, operands=read)
            statements.append(statement)
        self.program.statements = statements

    def inlined(self, operand: Operand, product: Compute, made: list[Compute]) -> Operand:
        """Return the operand, or what computes it, which is added to `made`."""
        if not isinstance(operand, View) or not self.is_alone(operand.base, product):
            return operand
        trial: list[Compute] = []
        computed, cost = self.computed(operand, trial)
        if not trial or cost > _COST:
            return operand
        made += trial
        return computed

    def is_alone(self, name: str, reader: Statement) -> bool:
        """Return True if a value is stored for one product alone."""
        if name in self.uses.in_python or name in self.program.placed:
            return False
        return [s.name for s in self.uses.readers(name)] == [reader.name]

    def computed(self, view: View, made: list[Compute]) -> tuple[Operand, int]:
        """Compute a view of a value from what is stored, with what it costs an element; else return it."""
        producer = self.by_name.get(view.base)
        if not isinstance(producer, Compute) or producer.by_place or producer.op == "take" or view.clips:
            return view, 0
        if self.program.roles.get(producer.name) == "product" or view.base in self.program.placed:
            return view, 0
        read: list[Operand] = []
        cost = POINTWISE[producer.op].cost
        for operand in producer.operands:
            part: Operand | None = operand
            if isinstance(operand, View):
                part = composed(view, producer.shape, operand)
                if part is None:
                    return view, 0
                part, more = self.computed(part, made)
                cost += more
            assert part is not None
            read.append(part)
        own = self.program.fresh(f"{producer.name}_read")
        self.program.define(own, view.shape, producer.dtype)
        self.program.unstored.add(own)
        made.append(replace(producer, name=own, operands=tuple(read), shape=view.shape))
        return View(own, view.shape, contiguous(view.shape)), cost
