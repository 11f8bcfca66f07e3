"""Recomputation: cheap values that only other kernels read are computed there again, and so never stored.

With x of [8, 64, 128], the task

    c = x - x.mean((1, 2), keepdim=True)
    return c.square().sum((1, 2)), c.transpose(1, 2).contiguous()

needs two kernels, as the transposed copy goes over the elements in another order. `fuse` alone has the first
one store %sub, 65,536 floats, for the second. `fuse_recomputing` has the second one subtract again:

    kernel over 8 × 64 (reduced) × 128 (reduced)
        %sum_1 = reduce sum(%x[8, 64, 128], axes [1, 2]) : float32[8, 1, 1]
        %div = div(%sum_1[8, 1, 1], 8192) : float32[8, 1, 1]
        %sub = sub(%x[8, 64, 128], %div[8×1, 64×0, 128×0]) : float32[8, 64, 128]
        %pow_1 = pow(%sub[8, 64, 128], exponent=2) : float32[8, 64, 128]
        %sum_2 = reduce sum(%pow_1[8, 64, 128], axes [1, 2]) : float32[8]
    kernel over 8 × 128 × 64
        %sub_again = sub(%x[8, 128×1, 64×128], %div[8×1, 128×0, 64×0]) : float32[8, 128, 64]
        %sub_contiguous = copy(%sub_again[8, 128, 64]) : float32[8, 128, 64]

It reads 65,536 elements of %x in place of as many of %sub, and the 8 means; writing 256 KiB of %sub is saved.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from kernelwright.agent.builtin.fusion.fuse import fuse
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Program,
    Reduce,
    Scan,
    Statement,
    View,
    contiguous,
    contiguous_axis,
    of_view,
    reading,
    slots,
    vectorisable,
)
from kernelwright.agent.builtin.ir.space import Region, analyse
from kernelwright.agent.builtin.ir.text import ITEMSIZE, SMALL_FLOATS
from kernelwright.agent.builtin.ir.uses import Unit, Uses
from kernelwright.agent.builtin.passes.dead_code import dead_code

# No products: where the compiler makes one instruction of a product and the sum after it, the value that is
# computed again is another than what was rounded before.
_CHEAP = {"add", "sub", "neg", "abs", "relu", "maximum", "minimum", "convert"}
_SMALL = 8  # elements of the value for each element of an operand that counts as small; chosen by hand


def fuse_recomputing(program: Program, apart: bool = False) -> tuple[Program, list[Unit]]:
    """Group statements as `fuse` does, but let kernels compute cheap values of others again.

    The program that is returned has the statements for that. With `apart`, nothing is computed again.
    """
    units = fuse(program, apart)
    wanted = {} if apart else dict(_worth(program, units))
    while wanted:
        trial = program.copy()
        made = _compute_again(trial, wanted)
        trial = dead_code(trial)
        again = fuse(trial, apart, made.keys())
        alone = {made[name] for name in made if not _is_inside(name, trial, again)}
        if not alone:
            return trial, again
        wanted = {name: read for name, read in wanted.items() if name not in alone}
    return program, units


def _worth(program: Program, units: Sequence[Unit]) -> Iterable[tuple[str, list[str]]]:
    """Values that are stored for other kernels alone and are cheap to compute, with what reads them there."""
    uses = Uses(program)
    stays = set(program.placed) | uses.in_python
    for unit in units:
        if not isinstance(unit, Region) or unit.recurrence is not None:
            continue
        inside = {s.name for s in unit.statements}
        for statement in unit.statements:
            outside = [s for s in uses.readers(statement.name) if s.name not in inside]
            if statement.name in stays or not outside or not isinstance(statement, Compute):
                continue
            whole = math.prod(statement.shape) == unit.space.numel
            if not whole or not _is_cheap(statement, inside, program):
                continue
            if all(_reads_whole(reader, statement) for reader in outside):
                yield statement.name, [reader.name for reader in outside]


def _is_cheap(statement: Compute, inside: Set[str], program: Program) -> bool:
    """Return True if a value is cheap to compute again, with the same result.

    It reads one large operand, which is in memory anyway and whose elements are no wider than its own. It is
    not rounded to 16 bits, and no number scales an operand.
    """
    read = [operand for operand in statement.operands if isinstance(operand, View)]
    if statement.op not in _CHEAP or "alpha" in statement.settings or statement.dtype in SMALL_FLOATS:
        return False
    elements = [
        math.prod(size for size, stride in zip(v.shape, v.strides, strict=True) if stride) for v in read
    ]
    large = [
        v for v, count in zip(read, elements, strict=True) if count * _SMALL > math.prod(statement.shape)
    ]
    itemsize = ITEMSIZE[statement.dtype]
    return (
        len(large) == 1
        and large[0].base not in inside
        and ITEMSIZE[program.dtypes[large[0].base]] <= itemsize
    )


def _reads_whole(reader: Statement, statement: Compute) -> bool:
    """Return True if the reader reads every element once, in an order that strides can describe."""
    if not isinstance(reader, Compute | Reduce | Scan):
        return False
    for view in slots(reader):
        if isinstance(view, Constant) or view.base != statement.name:
            continue
        computed = of_view(statement, view) if view.numel == math.prod(statement.shape) else None
        if computed is None or analyse([computed]) is None:
            return False
        for operand in computed.operands:
            if isinstance(operand, View) and not vectorisable(operand) and contiguous_axis(operand) is None:
                return False
    return True


def _compute_again(program: Program, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Give each reader values of its own; return these, with the values that they stand for."""
    now = {s.name: s for s in program.statements}
    before: dict[str, list[Statement]] = {}
    made: dict[str, str] = {}
    for name, readers in wanted.items():
        statement = now[name]
        assert isinstance(statement, Compute)
        for reader in readers:
            other = now[reader]
            assert isinstance(other, Compute | Reduce | Scan)
            read = list(slots(other))
            for view in dict.fromkeys(v for v in read if isinstance(v, View) and v.base == name):
                computed = of_view(statement, view)
                assert computed is not None
                own = program.fresh(f"{name}_again")
                program.define(own, view.shape, statement.dtype)
                before.setdefault(reader, []).append(replace(computed, name=own))
                made[own] = name
                mine = View(own, view.shape, contiguous(view.shape))
                read = [mine if operand == view else operand for operand in read]
            now[reader] = reading(other, read)
    program.statements = [s for old in program.statements for s in (*before.get(old.name, ()), now[old.name])]
    return made


def _is_inside(name: str, program: Program, units: Sequence[Unit]) -> bool:
    """Return True if all readers of a value are in the region that computes it."""
    readers = {s.name for s in Uses(program).readers(name)}
    for unit in units:
        if isinstance(unit, Region) and any(s.name == name for s in unit.statements):
            return readers <= {s.name for s in unit.statements}
    return False
