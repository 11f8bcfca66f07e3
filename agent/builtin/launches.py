"""Which regions share a kernel, and which calls of one are a single launch.

Regions that compute the same share a kernel, whatever values they read and wherever in them they begin. Calls
that do not need each other's results, and are too small to be worth more than one thread each, are launched
together, and threads share them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.builtin.fusion import Unit
from agent.builtin.host import fresh_results, in_place_outputs, needed_in_python, readers_of, stored
from agent.builtin.plan import Access, Plan, plan
from agent.builtin.program import (
    Attention,
    Compute,
    Joined,
    Library,
    Operand,
    Program,
    Reduce,
    View,
)
from agent.builtin.space import Region

SMALL = 1 << 15  # elements below which a parallel region costs more than it saves


@dataclass(frozen=True)
class Call:
    """A region on its values, of which those in `free` may be written over."""

    plan: Plan
    free: frozenset[str]

    @property
    def reads(self) -> list[str]:
        return list(dict.fromkeys(access.base for access in self.plan.accesses.values()))

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(access.offset for access in places(self.plan))


@dataclass(frozen=True)
class Launch:
    """Calls of one kernel, side by side. `moving` are the places that are not the same in all its calls."""

    calls: tuple[Call, ...]
    kernel: Hashable  # what it computes, and how
    moving: tuple[int, ...]


def places(planned: Plan) -> list[Access]:
    """Where a kernel reads, and where it writes into part of something."""
    return [*dict.fromkeys(planned.accesses.values()), *planned.results.values()]


def beginning(planned: Plan, begins: Mapping[Access, str]) -> Plan:
    """The plan with arguments for where some of its places begin."""

    def other(access: Access) -> Access:
        return replace(access, offset=0, at=begins[access]) if access in begins else access

    accesses = {key: other(access) for key, access in planned.accesses.items()}
    return replace(
        planned, accesses=accesses, results={name: other(access) for name, access in planned.results.items()}
    )


def launches(units: Sequence[Unit], program: Program, together: bool) -> list[Launch | Attention | Library]:
    """The units in order; `together` where a launch may be several calls."""
    calls = _calls(units, program)
    families: dict[Hashable, list[int]] = {}
    kernels = {index: _identity(call, program) for index, call in calls.items()}
    for index, kernel in kernels.items():
        families.setdefault(kernel, []).append(index)
    made = _makers(units, program)
    found: list[Launch | Attention | Library] = []
    launched: set[int] = set()
    for index, unit in enumerate(units):
        if not isinstance(unit, Region):
            found.append(unit)
        elif index not in launched:
            kernel = kernels[index]
            family = families[kernel]
            moving = _moving([calls[i] for i in family])
            group = [index]
            if together and _small(calls[index], program):
                group += [
                    other
                    for other in family
                    if other > index
                    and other not in launched
                    and all(made.get(base, -1) < index for base in calls[other].reads)
                ]
            if moving and 1 < len(group) < len(family):  # several tables of where calls begin
                group = [index]
            launched.update(group)
            found.append(Launch(tuple(calls[i] for i in group), kernel, moving))
    return found


def _calls(units: Sequence[Unit], program: Program) -> dict[int, Call]:
    """Of each region, by its number."""
    readers, python = readers_of(units, program), needed_in_python(program)
    fresh = fresh_results(units) - python
    found = {}
    for index, unit in enumerate(units):
        if not isinstance(unit, Region):
            continue
        outputs = stored(unit, index, program, readers, python)
        free = frozenset(base for base in fresh if readers.get(base) == {index})
        found[index] = Call(plan(unit, program, outputs), free)
    return found


def _makers(units: Sequence[Unit], program: Program) -> dict[str, int]:
    """The unit after which a value is there."""
    made: dict[str, int] = {}
    for index, unit in enumerate(units):
        if not isinstance(unit, Region):
            made[unit.name] = index
            continue
        made.update((s.name, index) for s in unit.statements)
        if unit.recurrence is not None:
            made.update((view.base, index) for view in unit.recurrence.results.values())
    for statement in program.statements:
        if isinstance(statement, Joined):
            made[statement.name] = max(made[piece] for piece in statement.pieces)
    return made


def _small(call: Call, program: Program) -> bool:
    region = call.plan.region
    alone = region.recurrence is not None or in_place_outputs(call.plan, call.free, program)
    return region.space.numel < SMALL and not alone


def _moving(family: Sequence[Call]) -> tuple[int, ...]:
    """The places that begin elsewhere in some of the calls."""
    columns = zip(*(call.offsets for call in family), strict=True)
    return tuple(number for number, column in enumerate(columns) if len(set(column)) > 1)


def _identity(call: Call, program: Program) -> Hashable:
    """What two regions have in common when one kernel serves both."""
    planned = call.plan
    own = {s.name: number for number, s in enumerate(planned.region.statements)}
    bases = {base: number for number, base in enumerate(call.reads)}
    numbers = {access: number for number, access in enumerate(places(planned))}

    def anonymous(operand: Operand | None) -> Hashable:
        if not isinstance(operand, View):
            return repr(operand)
        if operand.base in own:
            return replace(operand, base=f"own {own[operand.base]}")
        accesses = (planned.access(operand, level) for level in ("element", "row", "scalar"))
        which = tuple(numbers[a] for a in accesses if a is not None)
        return replace(operand, base=f"value {bases[operand.base]}", offset=0), which

    statements: list[Hashable] = []
    for s in planned.region.statements:
        if isinstance(s, Compute):
            settings = tuple(sorted((k, repr(v)) for k, v in s.settings.items()))
            reads = tuple(anonymous(o) for o in s.operands)
            statements.append((s.op, settings, reads, s.shape, s.dtype, s.compute_dtype))
        else:
            index = anonymous(s.index) if isinstance(s, Reduce) else None
            statements.append((type(s), s.op, anonymous(s.operand), index, s.dims, s.shape, s.dtype))
    dtypes = tuple(access.dtype for access in planned.accesses.values())
    steps: Hashable = None
    if (recurrence := planned.region.recurrence) is not None:
        steps = recurrence.steps, tuple((own[a], own[b]) for a, b in recurrence.becomes.items())
    left = tuple((own[name], replace(to, base="", offset=0)) for name, to in planned.results.items())
    outputs = tuple(own[name] for name in planned.outputs)
    in_place = in_place_outputs(planned, call.free, program)
    written = tuple((own[a], bases[b]) for a, b in in_place.items())
    return tuple(statements), dtypes, outputs, written, steps, left
