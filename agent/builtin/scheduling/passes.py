"""Passes over a row: the loads, computations, reductions, stores and buffers of each.

Pass p+1 may use the results of the reductions of pass p. An element value that a later pass needs again is
kept in a buffer of the thread when it is expensive, and computed again when it is cheap. A softmax over rows
of 4096 needs three passes, as both its reductions must be complete before the next one begins:

    0: 2048 rows of 4096: reads %x, writes %mul
        pass 1: reduce to %amax
        pass 2: compute %sub, %exp; reduce to %sum_1; keep %exp
        once a row: %reciprocal
        pass 3: compute %mul; store %mul

Passes 2 and 3 both need %exp. It costs 13 additions for each element (12 the exponential, 1 the difference),
which is `EXPENSIVE` or more, so pass 2 keeps it: 4096 floats, 16 KiB of the first-level cache. In h /
h.abs().sum(1, keepdim=True), with h = x - x.mean(1, keepdim=True) and x of [512, 1024], passes 2 and 3 both
need %sub, which costs 1 addition and one load. It is computed twice:

    0: 512 rows of 1024: reads %x, writes %div_1
        pass 1: reduce to %sum_1
        once a row: %div
        pass 2: compute %sub, %abs_1; reduce to %sum_2
        pass 3: compute %sub, %div_1; store %div_1
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelwright.agent.builtin.ir.ops import POINTWISE
from kernelwright.agent.builtin.ir.program import Compute, Fused, Reduce, Scan, View, views_of
from kernelwright.agent.builtin.ir.space import Level, Region

# Additions (`Pointwise.cost`) from which a value is kept rather than computed again: less than an exponential
# (12), more than a power (4). Chosen by hand.
EXPENSIVE = 8


@dataclass(frozen=True)
class Stage:
    """Row statements, then one pass over the row (empty after the last)."""

    row: tuple[Fused, ...]
    elements: tuple[Compute | Scan, ...]  # computed in the pass, in order
    reductions: tuple[Reduce, ...]
    stores: tuple[str, ...]  # element values written to their output
    keeps: tuple[str, ...]  # element values written to their buffer

    @property
    def in_pass(self) -> tuple[Fused, ...]:
        """The statements of the pass."""
        return (*self.elements, *self.reductions)

    @property
    def has_pass(self) -> bool:
        return bool(self.reductions or self.stores or self.keeps)


def reads(statement: Fused, region: Region) -> list[tuple[View, Level]]:
    """Return the operands of a statement with the level each is read at."""
    space = region.space
    if isinstance(statement, Compute):
        return [(v, space.levels[statement.name]) for v in views_of(statement)]
    level: Level = "element" if statement.operand.numel == space.numel else "row"
    found = [(statement.operand, level)]
    if isinstance(statement, Reduce) and statement.index is not None:
        found.append((statement.index, "row"))
    return found


def stages_of(
    region: Region, outputs: Sequence[str], keep: bool
) -> tuple[tuple[Stage, ...], tuple[Fused, ...], tuple[str, ...]]:
    """Return the stages, the statements after all rows, and the element values that are kept."""
    space = region.space
    by_name: dict[str, Fused] = {s.name: s for s in region.statements if space.levels[s.name] == "element"}
    depth: dict[str, int] = {}  # passes that must have run before the value is known
    for s in region.statements:
        known = max((depth[v.base] for v, _ in reads(s, region) if v.base in depth), default=0)
        is_pass = isinstance(s, Reduce) and s.op != "pick" and reads(s, region)[0][1] == "element"
        depth[s.name] = known + 1 if is_pass else known
    elements = [s for s in region.statements if space.levels[s.name] == "element"]
    reductions = [s for s in region.statements if isinstance(s, Reduce) and s.op != "pick"]
    in_pass = [s for s in reductions if reads(s, region)[0][1] == "element"]
    rows = [
        s
        for s in region.statements
        if space.levels[s.name] == "row" and (isinstance(s, Compute) or s.op == "pick")
    ]
    carried = set(region.recurrence.becomes.values()) if region.recurrence is not None else set()
    carried = {name for name in carried if space.levels[name] == "element"}  # to the next step, in a buffer
    written = [o for o in space.levels if (o in outputs or o in carried) and space.levels[o] == "element"]
    last = max([depth[s.name] for s in in_pass] + [depth[o] + 1 for o in written], default=0)
    available: set[str] = set()
    kept: list[str] = []
    stages: list[Stage] = []
    wanted = [
        {s.operand.base for s in in_pass if depth[s.name] == p + 1} | {o for o in written if depth[o] == p}
        for p in range(last)
    ]
    for p in range(last):
        needed = closure(wanted[p], by_name, available)
        stored = [s.name for s in elements if s.name in outputs and depth[s.name] == p]
        later: set[str] = set()
        if keep:
            for q in range(p + 1, last):
                later |= _frontier(wanted[q], by_name, available, depth, p)
        keeps = [
            s.name
            for s in elements
            if (s.name in carried and depth[s.name] == p)
            or (
                s.name in later
                and s.name in needed
                and s.name not in stored
                and _dear(s.name, by_name, available, set(space.levels))
            )
        ]
        stages.append(
            Stage(
                row=tuple(s for s in rows if depth[s.name] == p),
                elements=tuple(s for s in elements if s.name in needed and isinstance(s, Compute | Scan)),
                reductions=tuple(s for s in in_pass if depth[s.name] == p + 1),
                stores=tuple(stored),
                keeps=tuple(keeps),
            )
        )
        available |= set(keeps)
        kept += keeps
    final = tuple(s for s in rows if depth[s.name] >= last)
    stages.append(Stage(row=final, elements=(), reductions=(), stores=(), keeps=()))
    scalars = tuple(
        s for s in region.statements if space.levels[s.name] == "scalar" and isinstance(s, Compute)
    )
    return tuple(stages), scalars, tuple(kept)


def closure(names: Iterable[str], by_name: dict[str, Fused], available: set[str]) -> set[str]:
    """Return the element values to compute for `names`, stopping at the available ones."""
    found: set[str] = set()
    todo = [n for n in names if n in by_name]
    while todo:
        name = todo.pop()
        statement = by_name[name]
        if name in found or name in available or isinstance(statement, Reduce):
            continue
        found.add(name)
        todo += [o.base for o in views_of(statement) if o.base in by_name]
    return found


def _frontier(
    names: set[str], by_name: dict[str, Fused], available: set[str], depth: dict[str, int], p: int
) -> set[str]:
    """Values that pass `p` can compute that a later pass, which computes `names`, starts from."""
    found = {n for n in names if n in depth and depth[n] <= p}
    for name in closure(names, by_name, available):
        statement = by_name[name]
        if depth[name] > p:
            found |= {o.base for o in views_of(statement) if depth.get(o.base, p + 1) <= p}
    return found


def _dear(name: str, by_name: dict[str, Fused], available: set[str], computed: set[str]) -> bool:
    """Return True if loading the value again beats computing it again."""
    cost, loads = 0, set()
    for needed in closure([name], by_name, available):
        statement = by_name[needed]
        cost += POINTWISE[statement.op].cost if isinstance(statement, Compute) else EXPENSIVE
        loads |= {o.base for o in views_of(statement) if o.base not in computed and any(o.strides[-1:])}
    return cost >= EXPENSIVE or len(loads) > 1
