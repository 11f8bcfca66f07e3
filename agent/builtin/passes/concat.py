"""Concatenation in place: pieces are computed where they lie in the whole, as are functions of the whole.

`f(cat(a, b), y)` becomes `cat(f(a, y's first part), f(b, the rest))` as long as only pointwise operators read
the whole; what remains is written by the kernels that compute the pieces, straight into the whole. With x of
[512, 64], torch.cat([exp(x), tanh(x)], dim=1) * 2 is lowered to

    %exp = exp(%x[512, 64]) : float32[512, 64]
    %tanh = tanh(%x[512, 64]) : float32[512, 64]
    %cat = torch: aten.cat([%exp, %tanh], 1) : float32[512, 128]
    %mul = mul(%cat[512, 128], 2) : float32[512, 128]

Only %mul reads %cat, so each piece is doubled by itself and %cat never exists:

    %mul_0 = mul(%exp[512, 64], 2) : float32[512, 64]
    %mul_1 = mul(%tanh[512, 64], 2) : float32[512, 64]
    %mul = joined from %mul_0, %mul_1

One kernel over 512 × 64 computes all four and writes %mul_0 and %mul_1 into rows of 128, the latter from
element 64 of each row on. Pieces of one element, as of torch.stack([x & 15, x >> 4], -1), are written with
gaps between them: elements 0, 2, 4 and so on, and those between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelwright.agent.builtin.ir.graph import Ref
from kernelwright.agent.builtin.ir.ops import SUPPORTED_DTYPES
from kernelwright.agent.builtin.ir.program import (
    Compute,
    Joined,
    Library,
    Operand,
    Program,
    Statement,
    View,
    contiguous,
    contiguous_axis,
    near,
    refined,
    turned,
    vectorisable,
)
from kernelwright.agent.builtin.ir.text import SMALL_FLOATS
from kernelwright.agent.builtin.ir.uses import Uses

# Both chosen by hand.
_MOST_PIECES = 4  # pieces of a whole, for each of which every statement that reads the whole is copied
_LEAST_RUN = 16  # contiguous elements of a piece: one AVX-512 vector of floats


@dataclass(frozen=True)
class _Pieces:
    """Pieces of a value of `shape` along `dim`: views, and numbers that fill one."""

    shape: tuple[int, ...]
    dim: int
    operands: tuple[Operand, ...]
    sizes: tuple[int, ...]

    @property
    def step(self) -> int:
        """Elements of the whole from one element along `dim` to the next."""
        return math.prod(self.shape[self.dim + 1 :])

    @property
    def long(self) -> bool:
        """True if a vector loop can go through what lies together of each piece."""
        return all(size * self.step >= _LEAST_RUN for size in self.sizes)

    def alike(self, other: _Pieces) -> bool:
        """Return True if the other value is in the same pieces, of whatever shape it is."""
        return (self.step, self.sizes) == (other.step, other.sizes)

    def axis(self, shape: Sequence[int]) -> int | None:
        """Return the axis of a finer shape along which the pieces lie; None if there is no such axis."""
        length = self.shape[self.dim]
        return next(
            (a for a, size in enumerate(shape) if size == length and math.prod(shape[a + 1 :]) == self.step),
            None,
        )

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(each for each in self.operands if isinstance(each, View))

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(sum(self.sizes[:number]) for number in range(len(self.sizes)))


def concat(program: Program) -> Program:
    """Put what is computed, piece by piece, in the place of concatenations and of what reads only these."""
    program = program.copy()
    program.statements = _Joining(program).run()
    return program


class _Joining:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = Uses(program)
        self.computed = {s.name: s for s in program.statements if isinstance(s, Compute)}
        self.apart: dict[str, _Pieces] = {}  # what exists in pieces only
        self.found: list[Statement] = []

    def run(self) -> list[Statement]:
        for statement in self.program.statements:
            pieces = None
            if isinstance(statement, Compute):
                pieces = self.split(statement)
            elif isinstance(statement, Library):
                pieces = _concatenated(statement, self.program)
            if pieces is None:
                self.found.append(statement)
            elif self.only_in_pieces(statement.name, pieces):
                self.apart[statement.name] = pieces
            elif isinstance(statement, Compute):
                self.place(statement.name, [view.base for view in pieces.views], pieces)
            elif any(self.is_computed(view) or not vectorisable(view) for view in pieces.views):
                self.place(statement.name, self.copies(statement.name, pieces), pieces)
            else:
                self.found.append(statement)
        return self.found

    def split(self, statement: Compute) -> _Pieces | None:
        """Return the pieces of a statement that reads something that exists in pieces only."""
        read = (o for o in statement.operands if isinstance(o, View))
        pieces = next((self.apart[o.base] for o in read if o.base in self.apart), None)
        return self.in_pieces(statement, pieces) if pieces is not None else None

    def in_pieces(self, statement: Compute, like: _Pieces) -> _Pieces:
        """Add the statement once for each piece, and before it what only it reads."""
        self.computed.pop(statement.name, None)
        made: list[View] = []
        parts: list[Compute] = []
        found = self.cut(statement, like)
        assert found is not None, "a statement that does not fit is not split"
        whole, dim = found
        for number, (start, size) in enumerate(zip(like.starts, like.sizes, strict=True)):
            read: list[Operand] = []
            for o in statement.operands:
                if isinstance(o, View):
                    producer = self.computed.get(o.base)
                    if producer is not None and self.feeds(producer, statement, o, like):
                        self.apart[o.base] = self.in_pieces(producer, like)
                    if o.base in self.apart:
                        o = self.apart[o.base].operands[number]
                        o = o.split(_with(whole, dim, size)) if isinstance(o, View) else o
                    else:
                        o = _narrow(o.split(whole), dim, start, size)
                read.append(o)
            shape = _with(whole, dim, size)
            name = self.program.fresh(f"{statement.name}_{number}")
            self.program.define(name, shape, statement.dtype)
            parts.append(replace(statement, name=name, operands=tuple(read), shape=shape))
            made.append(View(name, shape, contiguous(shape)))
        self.found += parts
        return _Pieces(whole, dim, tuple(made), like.sizes)

    def cut(self, statement: Compute, like: _Pieces) -> tuple[tuple[int, ...], int] | None:
        """Return a shape of the statement in which such pieces lie along one axis, and the axis."""
        shape: tuple[int, ...] | None = statement.shape
        read = (o for o in statement.operands if isinstance(o, View))
        for pieces in (like, *(self.apart[o.base] for o in read if o.base in self.apart)):
            shape = refined(shape, pieces.shape) if shape is not None else None
        axis = like.axis(shape) if shape is not None else None
        return None if shape is None or axis is None else (shape, axis)

    def feeds(self, producer: Compute, statement: Compute, view: View, like: _Pieces) -> bool:
        """Return True if this statement alone reads the producer's value, by element, in such pieces."""
        if self.uses.readers(producer.name) != [statement] or producer.name in self.uses.in_python:
            return False
        if any(isinstance(o, View) and o.base == view.base and o != view for o in statement.operands):
            return False
        whole = view.linear and view.numel == math.prod(producer.shape)
        return whole and not producer.by_place and self.fits(producer, like)

    def fits(self, statement: Compute, like: _Pieces) -> bool:
        """Return True if the operands of a statement can be read in such pieces."""
        read = [o for o in statement.operands if isinstance(o, View)]
        others = (self.apart[o.base] for o in read if o.base in self.apart)
        cut = self.cut(statement, like)
        if cut is None or not all(like.alike(other) for other in others) or any(o.clips for o in read):
            return False
        shape, dim = cut
        return like.long or all(
            vectorisable(_narrow(o.split(shape), dim, 0, 1)) for o in read if vectorisable(o)
        )

    def only_in_pieces(self, name: str, pieces: _Pieces) -> bool:
        """Return True if all readers of a value can run on each of its pieces."""
        if not all(vectorisable(view) for view in pieces.views):
            return False
        whole = View(name, self.program.shapes[name], contiguous(self.program.shapes[name]))
        if name in self.uses.in_python:
            return False
        return all(self.can_be_split(reader, whole, pieces) for reader in self.uses.readers(name))

    def can_be_split(self, reader: Statement, whole: View, pieces: _Pieces) -> bool:
        if not isinstance(reader, Compute) or reader.by_place:
            return False
        mine = (o for o in reader.operands if isinstance(o, View) and o.base == whole.base)
        return all(o.linear and o.numel == whole.numel for o in mine) and self.fits(reader, pieces)

    def is_computed(self, view: View) -> bool:
        """Return True if a kernel of ours computes the piece."""
        whole = view.linear and view.numel == math.prod(self.program.shapes[view.base])
        return whole and view.base in self.computed

    def copies(self, name: str, pieces: _Pieces) -> list[str]:
        """Add copies of the pieces."""
        dtype = self.program.dtypes[name]
        compute_dtype = "float32" if dtype in SMALL_FLOATS else dtype
        made = []
        for number, (operand, size) in enumerate(zip(pieces.operands, pieces.sizes, strict=True)):
            shape = _with(pieces.shape, pieces.dim, size)
            made.append(self.program.fresh(f"{name}_piece_{number}"))
            self.program.define(made[-1], shape, dtype)
            self.found.append(Compute(made[-1], "copy", (operand,), {}, shape, dtype, compute_dtype))
        return made

    def place(self, name: str, made: Sequence[str], pieces: _Pieces) -> None:
        """Add the value as a whole, in which its pieces are written."""
        whole = View(name, pieces.shape, contiguous(pieces.shape))
        parts = zip(pieces.starts, pieces.sizes, strict=True)
        views = [_narrow(whole, pieces.dim, start, size) for start, size in parts]
        self.found.append(Joined(name, dict(zip(made, views, strict=True))))


def _concatenated(statement: Library, program: Program) -> _Pieces | None:
    """Return the pieces of a concatenation; None where the library is better at it."""
    if statement.node.op != "aten.cat.default":
        return None
    tensors, dim = statement.node.args[0], statement.node.args[1] if len(statement.node.args) > 1 else 0
    shape, dtype = program.shapes[statement.name], program.dtypes[statement.name]
    if not isinstance(tensors, tuple) or not isinstance(dim, int) or dtype not in SUPPORTED_DTYPES:
        return None
    dim %= len(shape)
    if not 1 < len(tensors) <= _MOST_PIECES or not all(isinstance(each, Ref) for each in tensors):
        return None
    metas = program.graph.metas()
    given = [metas[each.ref] for each in tensors if isinstance(each, Ref)]
    if any(meta.dtype != dtype or len(meta.shape) != len(shape) for meta in given):
        return None
    sizes = tuple(meta.shape[dim] for meta in given)
    operands = [program.views.get(each.ref) for each in tensors if isinstance(each, Ref)]
    pieces = [each for each in operands if each is not None and not (isinstance(each, View) and each.clips)]
    if len(pieces) != len(operands) or not any(isinstance(each, View) for each in pieces):
        return None
    if statement.order:  # in which the result lies
        pieces = [turned(each, statement.order) if isinstance(each, View) else each for each in pieces]
        dim = statement.order.index(dim)
    views = [each for each in pieces if isinstance(each, View)]
    if any(not vectorisable(v) and contiguous_axis(v) is None for v in views):
        return None
    found = _Pieces(shape, dim, tuple(pieces), sizes)
    return found if found.long or (found.step == 1 and set(sizes) == {1} and near(len(sizes))) else None


def _narrow(view: View, dim: int, start: int, size: int) -> View:
    return replace(view, shape=_with(view.shape, dim, size), offset=view.offset + start * view.strides[dim])


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
