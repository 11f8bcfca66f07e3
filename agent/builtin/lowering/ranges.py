"""Ranges of integers, from how they are computed: an index that is never too large need not be checked."""

import torch

from kernelwright.agent.builtin.ir.graph import Ref
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Library,
    Operand,
    Program,
    Statement,
)

_MOST = 16  # statements that one range is followed through, chosen by hand

Range = tuple[int, int]  # the least and the largest number


def range_of(operand: Operand | None, program: Program, steps: int = _MOST) -> Range | None:
    """Return a range that all elements of an operand lie in; None where none is known but for large integers.

    Codes of four bits in a byte, `x & 15` and `x >> 4` of uint8, are 0 to 15 after a cast to int32, too.
    """
    if isinstance(operand, Constant):
        return (int(operand.value), int(operand.value)) if not isinstance(operand.value, float) else None
    if operand is None or steps == 0:
        return None
    made = next((s for s in reversed(program.statements) if s.name == operand.base), None)
    found = _computed(made, program, steps) if made is not None else None
    dtype = program.dtypes[operand.base]
    if dtype == "bool":
        return 0, 1
    if dtype.startswith("float") or dtype == "bfloat16":
        return None
    limits = torch.iinfo(getattr(torch, dtype))
    if found is not None and limits.min <= found[0] <= found[1] <= limits.max:
        return found
    return (limits.min, limits.max) if limits.bits <= 16 else None


def _computed(made: Statement, program: Program, steps: int) -> Range | None:
    if isinstance(made, Library) and made.node.op == "aten.cat.default":
        pieces = made.node.args[0]
        assert isinstance(pieces, tuple)
        read = [program.views.get(piece.ref) for piece in pieces if isinstance(piece, Ref)]
        parts = [range_of(each, program, steps - 1) for each in read]
        known = [each for each in parts if each is not None]
        return (min(k[0] for k in known), max(k[1] for k in known)) if len(known) == len(pieces) else None
    if not isinstance(made, Compute):
        return None
    operands = [range_of(o, program, steps - 1) for o in made.operands]
    first = operands[0]
    match made.op:
        case "convert" | "copy":
            return first
        case "bitwise_and":
            masks = [o[1] for o in operands if o is not None and o[0] >= 0]
            return (0, min(masks)) if masks else None
        case "rshift":
            by = made.settings["other"]
            assert isinstance(by, int)
            return (first[0] >> by, first[1] >> by) if first is not None else None
    return None
