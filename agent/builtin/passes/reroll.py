"""Rerolling: loops that tracing has unrolled become loops again, so that one kernel runs all steps.

The statements of a step are those of the one before, with views that have moved on. A value of the step
before is carried from step to step. What remains of a step's values is either their concatenation over all
steps or those of the last step. A loop is left as it is where a step is several kernels, or calls the
library. With x of [256, 32, 16], the task

    h = x[:, 0] * 0
    for t in range(32):
        h = torch.tanh(h * 0.5 + x[:, t])
    return h

is traced as 97 statements, three for each step, which read %x 16 elements further on each time. They become
two:

    %mul = mul(%x[256×512, 16], 0) : float32[256, 16]
    %tanh_31 = 32 steps of
        %tanh_before = carried(%mul[256, 16]) : float32[256, 16]
        %mul_1 = mul(%tanh_before[256, 16], 0.5) : float32[256, 16]
        %add = add(%mul_1[256, 16], %x[256×512, 16] step +16) : float32[256, 16]
        %tanh = tanh(%add[256, 16]) : float32[256, 16]
        %tanh_before becomes %tanh

%tanh_before is %mul in the first step and %tanh of the step before in all others; `step +16` is the view's
`move`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.agent.builtin.ir.graph import Ref
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Fused,
    Library,
    Operand,
    Program,
    Recurrence,
    Reduce,
    Statement,
    View,
    contiguous,
    of_view,
    reading,
    slots,
    vectorisable,
)
from kernelwright.agent.builtin.ir.space import Region, analyse
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS
from kernelwright.agent.builtin.ir.uses import Uses
from kernelwright.agent.builtin.scheduling.loop_nest import KEPT_LIMIT, plan

# All chosen by hand.
_LEAST_STEPS = 4  # steps from which a repetition is taken for a loop
_MOST_STATEMENTS = 64  # statements of a step
_MOST_ATTEMPTS = 256  # attempts to find a loop, each of which looks at all of its statements


def reroll(program: Program) -> Program:
    """Put a `Recurrence` in the place of every loop that is one."""
    program = program.copy()
    begin = 0
    while begin < len(program.statements):
        found = _rolled_from(program, begin)
        if found is None:
            return program
        recurrence, place, length = found
        put = {view.base for view in recurrence.results.values()}
        rest = [s for s in program.statements[place + length :] if s.name not in put]
        program.statements[place:] = [recurrence, *rest]
        begin = place + 1
    return program


def _rolled_from(program: Program, begin: int) -> tuple[Recurrence, int, int] | None:
    """Return the first loop from statement `begin` on, with its place and its number of statements."""
    numbers: dict[Hashable, int] = {}
    attempts = 0
    uses = Uses(program)
    kinds = [numbers.setdefault(_kind(s), len(numbers)) for s in program.statements]
    for first, last, period in _repetitions(kinds, begin):
        for place in range(max(begin, first - period), first + period):
            most = (last - place) // period
            for steps in range(most, max(most - 2, _LEAST_STEPS - 1), -1):  # a step may follow that is none
                attempts += 1
                if attempts > _MOST_ATTEMPTS:
                    return None
                rolled = _Loop(program, uses, place, period, steps).rolled()
                if rolled is not None:
                    return rolled, place, steps * period
    return None


def _repetitions(kinds: Sequence[int], begin: int) -> Iterator[tuple[int, int, int]]:
    """Stretches in which statements are like those a period later: first place, end, and period."""
    for period in range(1, min(_MOST_STATEMENTS, (len(kinds) - begin) // _LEAST_STEPS) + 1):
        first = begin
        for at in range(begin, len(kinds) - period + 1):
            if at < len(kinds) - period and kinds[at] == kinds[at + period]:
                continue
            if at - first >= (_LEAST_STEPS - 2) * period:
                yield first, at + period, period
            first = at + 1


def _kind(statement: Statement) -> Hashable:
    """Key that a statement shares with its versions of all other steps."""
    if isinstance(statement, Compute):
        settings = tuple(sorted((k, repr(v)) for k, v in statement.settings.items()))
        shapes = tuple((o.shape, o.strides) if isinstance(o, View) else repr(o) for o in statement.operands)
        return (statement.op, settings, shapes, statement.shape, statement.dtype, statement.compute_dtype)
    if isinstance(statement, Reduce) and statement.op != "pick":
        shape, strides = statement.operand.shape, statement.operand.strides
        return (statement.op, shape, strides, statement.dims, statement.shape, statement.dtype)
    return (type(statement), statement.name)


def _same_work(one: Fused, other: Fused) -> bool:
    """Return True if two statements differ in their names and operands alone."""
    if isinstance(one, Compute) and isinstance(other, Compute):
        return replace(one, name="", operands=()) == replace(other, name="", operands=())
    if isinstance(one, Reduce) and isinstance(other, Reduce):
        return replace(one, name="", operand=other.operand) == replace(other, name="")
    return False


@dataclass
class _Loop:
    """An attempt: `steps` times `period` statements from `place` on. What fails returns None."""

    program: Program
    uses: Uses
    place: int
    period: int
    steps: int
    body: list[Compute | Reduce] = field(default_factory=list)
    carried: dict[str, Compute] = field(default_factory=dict)  # by what it was in the step before

    def rolled(self) -> Recurrence | None:
        statements = self.program.statements[self.place : self.place + self.steps * self.period]
        self.columns = [statements[number :: self.period] for number in range(self.period)]
        self.found = {s.name: divmod(number, self.period) for number, s in enumerate(statements)}
        if any(not isinstance(s, Compute | Reduce) or s.op == "pick" for s in statements):
            return None
        results = self.results()
        if not results:
            return None
        for column in self.columns:
            first = column[0]
            assert isinstance(first, Compute | Reduce)
            if not all(isinstance(s, Compute | Reduce) and _same_work(first, s) for s in column):
                return None
            read = [self.operand(several) for several in zip(*(slots(s) for s in column), strict=True)]  # type: ignore[arg-type]
            if any(o is None for o in read):
                return None
            self.body.append(reading(first, [o for o in read if o is not None]))
        if not self.carried or not self.moves(results):
            return None
        body = (*self.carried.values(), *self.body)
        becomes = {carried.name: source for source, carried in self.carried.items()}
        name = next(iter(results.values())).base
        whole = Recurrence(name, self.steps, body, becomes, results)
        for recurrence in (replace(whole, body=self.with_producers(body)), whole):
            if _is_a_kernel(recurrence, self.program):
                return recurrence
        return None

    def operand(self, several: tuple[Operand, ...]) -> Operand | None:
        """Return an operand of the first step's statement, from those of all steps'."""
        initial, second = several[0], several[1]
        if isinstance(second, Constant):
            return initial if all(repr(o) == repr(second) for o in several) else None
        later = [o for o in several[1:] if isinstance(o, View)]
        if len(later) != self.steps - 1:
            return None
        if second.base in self.found:
            return self.inside(initial, later)
        if not isinstance(initial, View) or initial.clips:
            return None
        move = second.offset - initial.offset
        moved = (replace(initial, offset=initial.offset + move * step) for step in range(self.steps))
        return replace(initial, move=move) if tuple(moved) == several else None

    def inside(self, initial: Operand, later: Sequence[View]) -> Operand | None:
        """View of a value of the same step, or of the step before."""
        step, number = self.found[later[0].base]
        ago = 1 - step
        for at, view in enumerate(later, 1):
            if self.found.get(view.base) != (at - ago, number) or replace(view, base="") != replace(
                later[0], base=""
            ):
                return None
        source = self.columns[number][0]
        assert isinstance(source, Compute | Reduce)
        if ago == 0:
            right = isinstance(initial, View) and replace(initial, base=later[0].base) == later[0]
            return initial if right and initial.base == source.name else None  # type: ignore[union-attr]
        if ago != 1 or (isinstance(initial, View) and initial.base in self.found):
            return None
        return self.of_the_step_before(source, initial, later[0])

    def of_the_step_before(self, source: Compute | Reduce, initial: Operand, view: View) -> View | None:
        if isinstance(initial, View) and source.shape != view.shape:
            if not initial.linear or not view.linear:
                return None
            initial = replace(initial, shape=source.shape, strides=contiguous(source.shape))
        known = self.carried.get(source.name)
        if known is None:
            name = self.program.fresh(f"{source.name}_before")
            known = Compute(name, "carried", (initial,), {}, source.shape, source.dtype, source.dtype)
            if known.compute_dtype in SMALL_FLOATS:
                known = replace(known, compute_dtype="float32")
            self.carried[source.name] = known
        return replace(view, base=known.name) if repr(known.operands[0]) == repr(initial) else None

    def moves(self, results: dict[str, View]) -> bool:
        """Return True if steps differ in what they read or leave; else a chain in registers is best."""
        read = (o for s in self.body for o in slots(s) if isinstance(o, View))
        return any(view.move for view in (*read, *results.values()))

    def results(self) -> dict[str, View] | None:
        """Return views in which the first step's values lie in the results; None where more is read."""
        readers: dict[str, list[Statement]] = {}
        for name in self.found:
            outside = [s for s in self.uses.readers(name) if s.name not in self.found]
            if outside:
                readers[name] = outside
        returned = self.uses.returned
        results: dict[str, View] = {}
        for column in self.columns:
            names = [s.name for s in column]
            if not any(name in readers or name in returned for name in names):
                continue
            if returned & set(names[:-1]) or any(name in readers for name in names[:-1]):
                stacked = None if returned & set(names) else self.stacked(column, readers)
                if stacked is None:
                    return None
                results[names[0]] = stacked
            else:
                shape = self.program.shapes[names[-1]]
                results[names[0]] = View(names[-1], shape, contiguous(shape))
        return results

    def stacked(self, column: Sequence[Statement], readers: dict[str, list[Statement]]) -> View | None:
        """View of the first step's value in the concatenation of all steps' values, or None."""
        first = readers.get(column[0].name, [])
        if len(first) != 1 or any(readers.get(s.name) != first for s in column):
            return None
        cat = first[0]
        if not isinstance(cat, Library) or cat.node.op != "aten.cat.default":
            return None
        pieces, dim = cat.node.args[0], cat.node.args[1] if len(cat.node.args) > 1 else 0
        if not isinstance(pieces, tuple) or not isinstance(dim, int) or len(pieces) != len(column):
            return None
        views = [self.program.views.get(piece.ref) if isinstance(piece, Ref) else None for piece in pieces]
        shape = self.program.shapes[column[0].name]
        first_view = views[0]
        if not isinstance(first_view, View) or first_view.numel != math.prod(shape) or not first_view.linear:
            return None
        if views != [replace(first_view, base=s.name) for s in column]:
            return None
        dim %= len(first_view.shape)
        whole = contiguous(cat.node.meta.shape)
        strides = iter([stride for size, stride in zip(first_view.shape, whole, strict=True) if size > 1])
        if [size for size in first_view.shape if size > 1] != [size for size in shape if size > 1]:
            return None
        own = tuple(next(strides) if size > 1 else 0 for size in shape)
        return View(cat.name, shape, own, move=first_view.shape[dim] * whole[dim])

    def with_producers(self, body: tuple[Compute | Reduce, ...]) -> tuple[Compute | Reduce, ...]:
        """Extend the body by statements that nothing else reads, and of which every step reads a part."""
        computed = {
            s.name: s for s in self.program.statements if isinstance(s, Compute) and s.name not in self.found
        }
        elsewhere = {*self.found}  # whose readers have been dealt with
        number = len(self.carried)
        while number < len(body):
            for view in dict.fromkeys(o for o in slots(body[number]) if isinstance(o, View)):
                producer = computed.get(view.base)
                part = _part(producer, view, self.steps) if producer is not None else None
                if part is None or not self.alone(view, body, elsewhere):
                    continue
                elsewhere.add(view.base)
                name = self.program.fresh(f"{view.base}_step")
                self.program.define(name, view.shape, part.dtype)
                made = View(name, view.shape, contiguous(view.shape))
                read = [reading(s, [made if o == view else o for o in slots(s)]) for s in body]
                body = (*read[:number], replace(part, name=name), *read[number:])
                break
            else:
                number += 1
        return body

    def alone(self, view: View, body: Sequence[Compute | Reduce], elsewhere: set[str]) -> bool:
        """Return True if a value is read through this view alone."""
        base = view.base
        readers = self.uses.readers(base)
        read = (o for s in body for o in slots(s) if isinstance(o, View) and o.base == base)
        alone = base not in self.uses.in_python and all(s.name in elsewhere for s in readers)
        return alone and all(o == view for o in read)


def _is_a_kernel(recurrence: Recurrence, program: Program) -> bool:
    """Return True if one kernel can do it: a step is one region and needs nothing that is overwritten."""
    space = analyse(recurrence.body)
    if space is None or not space.axes or "scalar" in space.levels.values() or space.clips:
        return False
    for carried in recurrence.body[: len(recurrence.becomes)]:
        program.define(carried.name, carried.shape, carried.dtype)
    planned = plan(Region(recurrence.body, space, recurrence), program, list(recurrence.results))
    if planned.mode == "tiles":
        return False
    width = min(planned.sizes[-1], 64) if planned.mode == "columns" else planned.rows_at_once
    if planned.mode != "flat" and planned.row_length * width * len(planned.carried) > KEPT_LIMIT:
        return False
    overwritten: set[str] = set()
    for stage in planned.stages:
        if any(s.name in overwritten for s in stage.elements):
            return False
        overwritten |= {name for source in stage.keeps for name in planned.carried.get(source, ())}
    return True


def _part(producer: Compute, view: View, steps: int) -> Compute | None:
    """Return the statement that computes what one step reads of a value, each of its elements once."""
    if not view.move or view.numel * steps != math.prod(producer.shape):
        return None
    computed = of_view(producer, view, steps)
    if computed is None or not all(vectorisable(o) for o in computed.operands if isinstance(o, View)):
        return None
    return computed
