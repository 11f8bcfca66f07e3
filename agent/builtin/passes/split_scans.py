"""Long scans in two steps, so that a GPU has enough blocks: what parts reduce to first, then scans of parts.

x.cumsum(1) with x of [8, 1048576] has 8 rows for an H100's 132 multiprocessors. Its rows are cut into 128
parts of 8192 elements. What a part's elements are added to is the sum of all parts before it:

    %cumsum_parts = reduce sum(%x[8, 128×8192, 8192×1], axes [2]) : float32[8, 128]
    %cumsum_upto = scan sum(%cumsum_parts[8, 127×1], axis 1) : float32[8, 127]
    %cumsum_none = copy(0.0) : float32[8, 1]
    %cumsum_before = joined from %cumsum_none, %cumsum_upto
    %cumsum_within = scan sum(%x[8, 128×8192, 8192×1], axis 2) : float32[8, 128, 8192]
    %cumsum = add(%cumsum_within[8, 128, 8192], %cumsum_before[8×128, 128×1, 8192×0])

Parts in float32 are joined in float64, and always in order, so that results are reproducible. All of x is
read twice. The cut is that of long reductions (`split_reductions.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from kernelwright.agent.builtin.ir.ops import REDUCTIONS
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Joined,
    Operand,
    Program,
    Reduce,
    Scan,
    Statement,
    View,
    contiguous,
)
from kernelwright.agent.builtin.passes.split_reductions import RowCut, cut_of_rows

_JOINED_BY = {"sum": "add", "prod": "mul"}  # operators that join what parts reduce to with their elements
_LEAST_PARTS = 4
# Columns that a block scans side by side (`codegen/cuda/backend.py`), and the share of the multiprocessors
# that have a block below which reading rows twice is faster; chosen by hand, not measured.
_BESIDE = 16
_BUSY = 0.5


def split_scans(program: Program, blocks: int, multiprocessors: int) -> Program:
    """Cut long scans into parts, where fewer than half of the multiprocessors would have a block."""
    if not blocks:
        return program
    found: list[Statement] = []
    new = program.copy()
    for statement in program.statements:
        cut = _cut(statement, blocks, multiprocessors) if isinstance(statement, Scan) else None
        if cut is None:
            found.append(statement)
        else:
            assert isinstance(statement, Scan)
            found += _parts(statement, cut, new)
    new.statements = found
    return new if len(found) > len(program.statements) else program


def _cut(scan: Scan, blocks: int, multiprocessors: int) -> RowCut | None:
    [dim] = scan.dims
    rows = math.prod(scan.shape) // scan.shape[dim]
    beside = _BESIDE if math.prod(scan.shape[dim + 1 :]) > 1 else 1
    if scan.op not in _JOINED_BY or scan.operand.clips or rows > _BUSY * multiprocessors * beside:
        return None
    shape = tuple(size for axis, size in enumerate(scan.shape) if axis != dim) or (1,)
    cut = cut_of_rows(Reduce(scan.name, scan.op, scan.operand, (dim,), shape, scan.dtype), blocks, held=False)
    return cut if cut is not None and cut.count >= _LEAST_PARTS else None


def _parts(scan: Scan, cut: RowCut, program: Program) -> list[Statement]:
    [dim], dtype = scan.dims, scan.dtype
    made: list[Statement] = []
    operand = cut.view(scan.operand)

    wide = "float64" if dtype == "float32" else dtype  # of what many parts come to

    def define(ending: str, shape: tuple[int, ...], dtype: str = wide) -> View:
        name = program.fresh(f"{scan.name}_{ending}")
        program.define(name, shape, dtype)
        return View(name, shape, contiguous(shape))

    def compute(op: str, operands: tuple[Operand, ...], to: View, dtype: str = wide) -> None:
        made.append(Compute(to.base, op, operands, {}, to.shape, dtype, dtype))

    parts = define("parts", cut.parts_shape, dtype)
    made.append(Reduce(parts.base, scan.op, operand, cut.inside, parts.shape, dtype))
    if wide != dtype:
        rounded, parts = parts, define("parts_wide", parts.shape)
        compute("convert", (rounded,), parts)
    fewer = (*parts.shape[:dim], cut.count - 1, *parts.shape[dim + 1 :])
    upto, none = define("upto", fewer), define("none", (*fewer[:dim], 1, *fewer[dim + 1 :]))
    made.append(Scan(upto.base, scan.op, replace(parts, shape=fewer), (dim,), fewer, wide))
    neutral = REDUCTIONS[scan.op].initial
    assert not isinstance(neutral, str)
    compute("copy", (Constant(neutral),), none)
    before = define("before", parts.shape)
    places = {
        none.base: replace(before, shape=none.shape),
        upto.base: replace(before, shape=fewer, offset=before.strides[dim]),
    }
    made.append(Joined(before.base, places))
    within = define("within", cut.shape, dtype)
    made.append(Scan(within.base, scan.op, operand, (dim + 1,), cut.shape, dtype))
    spread = (*before.strides[: dim + 1], 0, *before.strides[dim + 1 :])
    each, result = View(before.base, cut.shape, spread), View(scan.name, cut.shape, contiguous(cut.shape))
    if wide == dtype:
        compute(_JOINED_BY[scan.op], (within, each), result)
    else:
        total = define("wide", cut.shape)
        compute(_JOINED_BY[scan.op], (within, each), total)
        compute("convert", (total,), result, dtype)
    return made
