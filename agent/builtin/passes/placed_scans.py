"""Scans written in place: where they are read backwards, or behind a padding, no copy follows them.

A running sum from the end, x.flip(-1).cumsum(-1).flip(-1) with x of [512, 1000], is lowered to

    %cumsum = scan sum(%x[512, 1000×-1] +999, axis 1) : float32[512, 1000]
    %flipped = copy(%cumsum[512, 1000×-1] +999) : float32[512, 1000]

and here the scan's own kernel writes each row of %flipped from its end:

    %cumsum = scan sum(%x[512, 1000×-1] +999, axis 1) : float32[512, 1000]
    %flipped = joined from %cumsum

One without the element itself, F.pad(x.cumsum(-1)[:, :-1], (1, 0)), is the scan of all columns but the last,
written from the second column on, and a column of zeros:

    %pad_scan = scan sum(%x[512, 999×1], axis 1) : float32[512, 999]
    %pad_edge_0 = copy(0.0) : float32[512, 1]
    %pad = joined from %pad_scan, %pad_edge_0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelwright.agent.builtin.ir.ops import SUPPORTED_DTYPES
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Joined,
    Library,
    Program,
    Scan,
    Statement,
    View,
    contiguous,
)
from kernelwright.agent.builtin.ir.uses import Uses, operands
from kernelwright.agent.builtin.passes.dead_code import dead_code

_PADS = ("aten.pad.default", "aten.constant_pad_nd.default")


def placed_scans(program: Program) -> Program:
    """Let scans write what copies and paddings of theirs, and nothing else, would read."""
    placing = _Placing(program.copy())
    placing.run()
    return dead_code(placing.program) if placing.changed else program


class _Placing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = Uses(program)
        self.scans = {s.name: s for s in program.statements if isinstance(s, Scan)}
        self.computed = {s.name for s in program.statements if isinstance(s, Compute)}
        self.found: list[Statement] = []
        self.changed = False

    def run(self) -> None:
        for statement in self.program.statements:
            new = None
            if isinstance(statement, Compute) and statement.op == "copy":
                new = self.of_copy(statement)
            elif isinstance(statement, Library) and statement.node.op in _PADS and not statement.order:
                new = self.of_padding(statement)
            self.found += [statement] if new is None else new
            self.changed |= new is not None
        self.program.statements = self.found

    def scan_of(self, view: object, reader: Statement) -> Scan | None:
        """Return the scan behind a view that nothing but `reader` reads."""
        scan = self.scans.get(view.base) if isinstance(view, View) else None
        if scan is None or scan.name in self.uses.returned or self.uses.readers(scan.name) != [reader]:
            return None
        return scan

    def of_copy(self, copy: Compute) -> list[Statement] | None:
        [view] = copy.operands
        scan = self.scan_of(view, copy)
        if scan is None or not isinstance(view, View) or scan.dtype != copy.dtype:
            return None
        if copy.name in self.program.placed:  # in part of a value already
            return None
        if view.shape != scan.shape or not _is_flip(view):
            return None
        return [Joined(copy.name, {scan.name: replace(view, base=copy.name)})]

    def of_padding(self, pad: Library) -> list[Statement] | None:
        read = operands(pad, self.program)
        view = read[0] if len(read) == 1 else None
        scan = self.scan_of(view, pad)
        padding, value = _padding(pad)
        if scan is None or view is None or padding is None or scan.dtype not in SUPPORTED_DTYPES:
            return None
        shape, dtype = self.program.shapes[pad.name], self.program.dtypes[pad.name]
        [dim] = scan.dims
        narrow = _is_prefix(view, scan.shape, dim)
        if not narrow or len(padding) != len(shape) or (dtype, len(shape)) != (scan.dtype, len(scan.shape)):
            return None
        if scan.operand.base in self.computed and view.shape != scan.shape:  # its kernel computes it whole
            return None
        if [axis for axis, both in enumerate(padding) if any(both)] != [dim]:
            return None
        length = view.shape[dim]
        operand = replace(scan.operand, shape=_with(scan.operand.shape, dim, length))
        name = self.program.fresh(f"{pad.name}_scan")
        self.program.define(name, view.shape, dtype)
        made: list[Statement] = [replace(scan, name=name, operand=operand, shape=view.shape)]
        whole = View(pad.name, shape, contiguous(shape))
        before, after = padding[dim]
        pieces = {name: _part(whole, dim, before, length)}
        for number, (start, size) in enumerate(((0, before), (before + length, after))):
            if not size:
                continue
            edge = self.program.fresh(f"{pad.name}_edge_{number}")
            part = pieces[edge] = _part(whole, dim, start, size)
            self.program.define(edge, part.shape, dtype)
            made.append(Compute(edge, "copy", (Constant(value),), {}, part.shape, dtype, dtype))
        return [*made, Joined(pad.name, pieces)]


def _padding(pad: Library) -> tuple[list[tuple[int, int]] | None, float]:
    """Elements before and after each axis, and their value; None where it is no such padding."""
    given = dict(zip(("self", "pad", "mode", "value"), pad.node.args, strict=False)) | dict(pad.node.kwargs)
    if pad.node.op == "aten.constant_pad_nd.default":
        given = dict(zip(("self", "pad", "value"), pad.node.args, strict=False)) | dict(pad.node.kwargs)
    ends, value, rank = given.get("pad"), given.get("value") or 0, len(pad.node.outputs[0].shape)
    if given.get("mode", "constant") != "constant" or not isinstance(value, int | float):
        return None, 0
    if not isinstance(ends, tuple) or not all(isinstance(each, int) and each >= 0 for each in ends):
        return None, 0
    pairs = [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if isinstance(a, int)]
    whole = [(0, 0)] * (rank - len(pairs)) + [(a, int(b)) for a, b in reversed(pairs)]  # type: ignore[arg-type]
    return whole, value


def _is_flip(view: View) -> bool:
    """Return True if a view has all elements of a contiguous value, along some axes backwards."""
    offset = 0
    for size, stride, step in zip(view.shape, view.strides, contiguous(view.shape), strict=True):
        if size > 1 and abs(stride) != step:
            return False
        offset += (size - 1) * step if size > 1 and stride < 0 else 0
    plain = not (view.clips or view.move or view.table)
    return plain and offset > 0 and view.offset == offset


def _is_prefix(view: View, shape: Sequence[int], dim: int) -> bool:
    """Return True if a view of a contiguous value has its first elements along `dim`, and all of the rest."""
    alike = len(view.shape) == len(shape) and not (view.offset or view.clips or view.move or view.table)
    return alike and all(
        (size == whole or axis == dim) and (size == 1 or stride == step)
        for axis, (size, whole, stride, step) in enumerate(
            zip(view.shape, shape, view.strides, contiguous(tuple(shape)), strict=True)
        )
    )


def _part(view: View, dim: int, start: int, size: int) -> View:
    return replace(view, shape=_with(view.shape, dim, size), offset=view.offset + start * view.strides[dim])


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
