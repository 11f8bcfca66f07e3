"""Launches: regions that share a kernel, and calls of kernels that are made as one.

Regions that compute the same share a kernel, whatever values they read and wherever in them they begin. Calls
that do not need each other's results, and are too small to be worth more than one thread each, are launched
together, of one kernel or of several, and threads share them. With x of [16, 64], the task

    a, b = self.a(x), self.b(x)
    return torch.sigmoid(a), torch.sigmoid(b), torch.tanh(a)

has two linear layers with results of [16, 32] and two kernels of 512 elements, far fewer than `SMALL`. The
kernels wait until both layers have been called, and then are one launch:

    0: torch: aten.linear(%x, %p_a_weight, %p_a_bias)
    1: torch: aten.linear(%x, %p_b_weight, %p_b_bias)
    2: 2 kernels in one launch
        512 elements in blocks: reads %linear_1, writes %sigmoid_1
            pass 1: compute %sigmoid_1; store %sigmoid_1
        512 elements in blocks: reads %linear, writes %sigmoid, %tanh
            pass 1: compute %sigmoid, %tanh; store %sigmoid, %tanh
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from kernelwright.agent.builtin.ir.program import (
    Attention,
    Compute,
    Joined,
    Library,
    Operand,
    Program,
    Reduce,
    View,
)
from kernelwright.agent.builtin.ir.space import Region
from kernelwright.agent.builtin.ir.uses import Unit, Uses, operands, stored
from kernelwright.agent.builtin.scheduling.in_place import fresh_results, in_place_outputs
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan, plan

# Elements below which a kernel runs in one thread: a parallel region costs 0.6 to 1.3 µs (docs/LOG.md,
# 2026-11-23, "What a machine can do at best"). Chosen by hand.
SMALL = 1 << 15


@dataclass(frozen=True)
class RegionCall:
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
    """Calls of one kernel, made as one. `moving`: the places that are not the same in all its calls."""

    calls: tuple[RegionCall, ...]
    kernel: Hashable  # what it computes, and how
    moving: tuple[int, ...]


@dataclass(frozen=True)
class HorizontalFusion:
    """Launches that are made as one: small work of several kinds."""

    launches: tuple[Launch, ...]


def places(planned: Plan) -> list[Access]:
    """Return the accesses of a kernel: what it reads, and where it writes into part of a value."""
    return [*dict.fromkeys(planned.accesses.values()), *planned.results.values()]


def beginning(planned: Plan, begins: Mapping[Access, str]) -> Plan:
    """Plan that takes the offsets of some of its places as arguments."""

    def other(access: Access) -> Access:
        return replace(access, offset=0, at=begins[access]) if access in begins else access

    accesses = {key: other(access) for key, access in planned.accesses.items()}
    return replace(
        planned, accesses=accesses, results={name: other(access) for name, access in planned.results.items()}
    )


def launches(
    units: Sequence[Unit], program: Program, batches: bool, abreast: int, joins: Callable[[Plan], bool]
) -> list[Launch | HorizontalFusion | Attention | Library]:
    """Order units so that they can run, and launch kernels together where that pays.

    `batches`: a launch may be several calls of a kernel. Up to `abreast` launches, of kernels that `joins`
    accepts, may be one.
    """
    order = _Order(units, program, batches, abreast, joins)
    for index in range(len(units)):
        order.visit(index)
    order.finish()
    return order.found


class _Order:
    """Small work waits until a result of it is needed; then all that can be launched with it is."""

    def __init__(
        self,
        units: Sequence[Unit],
        program: Program,
        batches: bool,
        abreast: int,
        joins: Callable[[Plan], bool],
    ) -> None:
        self.units = units
        self.abreast = abreast
        self.found: list[Launch | HorizontalFusion | Attention | Library] = []
        self.calls = _calls(units, program)
        self.kernels = {index: _identity(call, program) for index, call in self.calls.items()}
        self.families: dict[Hashable, list[int]] = {}
        for index, kernel in self.kernels.items():
            self.families.setdefault(kernel, []).append(index)
        small = {index for index, call in self.calls.items() if _small(call)}
        self.joining = {index for index in small if abreast > 1 and joins(self.calls[index].plan)}
        self.repeated = {i for i in small if batches and not _in_place(self.calls[i], program)}
        self.needs = _needs(units, program)
        self.readers: dict[int, list[int]] = {}
        for index, needed in enumerate(self.needs):
            for maker in needed:
                self.readers.setdefault(maker, []).append(index)
        self.missing = [len(needed) for needed in self.needs]
        self.left = set(range(len(units)))
        self.ready = {index for index in small if not self.missing[index]}

    def visit(self, index: int) -> None:
        if index not in self.left:
            return
        for needed in sorted(self.needs[index]):
            self.make(needed)
        if index not in self.joining:
            self.make(index)

    def finish(self) -> None:
        for index in sorted(self.left):
            self.make(index)

    def make(self, index: int) -> None:
        """Add a unit whose operands are there, unless it has been added."""
        if index not in self.left:
            return
        unit = self.units[index]
        if not isinstance(unit, Region):
            self.found.append(unit)
            self.done({index})
            return
        lead, taken = self.launch(index, set())
        side = [lead]
        if index in self.joining:
            for other in sorted(self.ready & self.joining):
                if other not in taken and len(side) < self.abreast:
                    launch, group = self.launch(other, taken)
                    side.append(launch)
                    taken |= group
        self.found.append(HorizontalFusion(tuple(side)) if len(side) > 1 else lead)
        self.done(taken)

    def launch(self, index: int, taken: Set[int]) -> tuple[Launch, set[int]]:
        """Launch of a call with those of its kernel that are ready and not taken yet, and their numbers."""
        family = self.families[self.kernels[index]]
        moving = _moving([self.calls[i] for i in family])
        group = [index]
        if index in self.repeated:
            group += [i for i in family if i in self.ready and i != index and i not in taken]
        if moving and 1 < len(group) < len(family):  # several tables of where calls begin
            group = [index]
        return Launch(tuple(self.calls[i] for i in group), self.kernels[index], moving), set(group)

    def done(self, indices: Set[int]) -> None:
        self.left -= indices
        self.ready -= indices
        for index in indices:
            for reader in self.readers.get(index, ()):
                self.missing[reader] -= 1
                if not self.missing[reader] and _small(self.calls.get(reader)):
                    self.ready.add(reader)


def _needs(units: Sequence[Unit], program: Program) -> list[set[int]]:
    """Numbers of the units whose results each unit reads."""
    makers = _makers(units, program)

    def sources(name: str) -> set[int]:
        if name in makers or name not in program.view_nodes:
            return makers.get(name, set())
        view = program.views.get(name)
        if isinstance(view, View) and view.base != name:
            return sources(view.base)
        return set().union(*(sources(other) for other in program.view_nodes[name].inputs))

    found = []
    for index, unit in enumerate(units):
        statements = unit.statements if isinstance(unit, Region) else (unit,)
        read = {view.base for statement in statements for view in operands(statement, program)}
        found.append(set().union(*map(sources, read)) - {index})
    return found


def _calls(units: Sequence[Unit], program: Program) -> dict[int, RegionCall]:
    """Call of each region, by its number."""
    uses = Uses(program)
    fresh = fresh_results(units) - uses.in_python
    found = {}
    for index, unit in enumerate(units):
        if not isinstance(unit, Region):
            continue
        planned = plan(unit, program, stored(unit, program, uses))
        own = unit.statements if unit.recurrence is None else (unit.recurrence,)
        free = frozenset(base for base in fresh if all(reader in own for reader in uses.readers(base)))
        found[index] = RegionCall(planned, free)
    return found


def _makers(units: Sequence[Unit], program: Program) -> dict[str, set[int]]:
    """Numbers of the units after which each value exists."""
    made: dict[str, set[int]] = {}
    for index, unit in enumerate(units):
        if not isinstance(unit, Region):
            made[unit.name] = {index}
            continue
        made.update((s.name, {index}) for s in unit.statements)
        if unit.recurrence is not None:
            for view in unit.recurrence.results.values():
                made.setdefault(view.base, set()).add(index)
    for statement in program.statements:
        if isinstance(statement, Joined):
            made[statement.name] = set().union(*(made[piece] for piece in statement.pieces))
    return made


def _small(call: RegionCall | None) -> bool:
    if call is None:
        return False
    region = call.plan.region
    return region.space.numel < SMALL and region.recurrence is None


def _in_place(call: RegionCall, program: Program) -> bool:
    return bool(in_place_outputs(call.plan, call.free, program))


def _moving(family: Sequence[RegionCall]) -> tuple[int, ...]:
    """Places whose offsets differ between the calls."""
    columns = zip(*(call.offsets for call in family), strict=True)
    return tuple(number for number, column in enumerate(columns) if len(set(column)) > 1)


def _identity(call: RegionCall, program: Program) -> Hashable:
    """Key that two regions share when one kernel serves both."""
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
