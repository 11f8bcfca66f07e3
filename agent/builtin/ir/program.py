"""Programs: the form of a graph before fusion, as computations over views of contiguous values.

A view costs nothing: transposing, slicing, expanding and broadcasting change strides and the offset alone. Of
a contiguous x of [2, 3, 4], whose strides are 12, 4 and 1:

>>> x = View("x", (2, 3, 4), contiguous((2, 3, 4)))
>>> turned(x, (0, 2, 1)).strides  # x.transpose(1, 2), of [2, 4, 3]
(12, 1, 4)
>>> broadcast(View("bias", (4,), (1,)), (2, 3, 4)).strides  # added to x: read again along two axes
(0, 0, 1)

Views of views are views of the value that exists. y = x[:, 1] is of [2, 4], and y.T of [4, 2]:

>>> y = View("x", (2, 4), (12, 1), offset=4)
>>> composed(View("y", (4, 2), (1, 4)), (2, 4), y)
View(base='x', shape=(4, 2), strides=(1, 12), offset=4, clips=(), move=0, table=0)

A `Clip` describes windows that reach over an edge. Of pooling over 8 elements with kernel 3, stride 2 and
padding 1, element `place` of window `number` is element 2 * number + place - 1. So window 0 lacks element 0,
which would be number -1, and windows 1 to 3 have all of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

from kernelwright.agent.builtin.ir.expression import Expression, Position, walk
from kernelwright.agent.builtin.ir.graph import Graph, Meta, Node
from kernelwright.agent.builtin.ir.ops import POINTWISE, Settings

# Both in elements, chosen by hand.
NEAR = 4  # stride up to which reading every n-th element beats making a copy
_LEAST_TILE = 8  # length of a contiguous axis from which a kernel transposes it in tiles


@dataclass(frozen=True)
class Clip:
    """Edge of the value that windows reach over.

    Element `place` of window `number` is element number * stride + place * dilation - padding of the value,
    and exists if that is in [0, size). `windows` and `elements` are the axes of the view that these are
    indices of.
    """

    windows: int
    elements: int
    stride: int
    dilation: int
    padding: int
    size: int


@dataclass(frozen=True)
class View:
    """Elements of the contiguous value `base`, read with strides.

    Elements outside a clip do not exist; only reductions may read such a view, and they skip them. With every
    step of a recurrence the view moves on by `move` elements. The operand of `take` is a table: it lies
    `table` elements further on for every one that the index counts.
    """

    base: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    clips: tuple[Clip, ...] = ()
    move: int = 0
    table: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def linear(self) -> bool:
        """True if element i of the view is element i of a contiguous tensor (the base, when sizes match)."""
        return not (self.offset or self.clips or self.move or self.table) and all(
            size == 1 or stride == expected
            for size, stride, expected in zip(self.shape, self.strides, contiguous(self.shape), strict=True)
        )

    def split(self, shape: tuple[int, ...]) -> View:
        """Return the view at a shape that `refined` gives for its own: axes are split, or are of one element.

        The view has no clips.
        """
        if shape == self.shape:
            return self
        strides: list[int] = []
        dims = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if size != 1]
        for size in reversed(shape):
            if size == 1:
                strides.append(0)
                continue
            length, stride = dims.pop()
            strides.append(stride)
            if length != size:
                dims.append((length // size, stride * size))
        return replace(self, shape=shape, strides=tuple(reversed(strides)))


@dataclass(frozen=True)
class Constant:
    value: float | int | bool


Operand: TypeAlias = View | Constant
Role: TypeAlias = Literal["product", "variance"]


@dataclass(frozen=True)
class Compute:
    """One pointwise operator; views are broadcast to `shape`. `compute_dtype` is what it computes in."""

    name: str
    op: str  # a key of POINTWISE
    operands: tuple[Operand, ...]
    settings: Settings = field(hash=False)
    shape: tuple[int, ...]
    dtype: str
    compute_dtype: str

    @property
    def expression(self) -> Expression:
        return POINTWISE[self.op].tree(self.settings)

    @property
    def by_place(self) -> bool:
        """True if the result depends on the place of an element in the whole."""
        return any(isinstance(node, Position) for node in walk(self.expression))


@dataclass(frozen=True)
class Reduce:
    """A reduction of `operand` over `dims`; for `pick`, the element at `index` along the reduced dims."""

    name: str
    op: str  # a key of REDUCTIONS, or "pick"
    operand: View
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    index: View | None = None


@dataclass(frozen=True)
class Scan:
    """A running reduction of `operand` along one axis: what the elements up to each one reduce to."""

    name: str
    op: str  # a key of REDUCTIONS
    operand: View
    dims: tuple[int, ...]  # one
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Recurrence:
    """Statements that one kernel carries out again and again, each step after the other.

    What the operator `carried` computes is what `becomes` names for it, as it was in the step before; in the
    first step it is its operand. `results` are the values that remain, with how what a statement computes in
    the first step lies in its value.
    """

    name: str  # of its first result
    steps: int
    body: tuple[Compute | Reduce, ...]
    becomes: Mapping[str, str] = field(hash=False)
    results: Mapping[str, View] = field(hash=False)


@dataclass(frozen=True)
class Library:
    """A torch call; `order` is that of its result's axes in memory, where it is not their own."""

    name: str
    node: Node
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Attention:
    """softmax(scale * Q K^T + mask) V by one kernel that goes through the keys in blocks.

    `query` is [images, heads, queries, size], `key` and `value` are [images, groups, keys, size], where each
    group is that of as many heads; the elements of a vector lie together. `mask`, of numbers that are added
    or of bool, is [images, heads, queries, keys]. The value is [images, queries, heads, size], or has its
    heads first.
    """

    name: str
    query: View
    key: View
    value: View
    mask: View | None
    scale: float
    causal: bool  # a query sees the keys of its number and below
    heads_first: bool
    dtype: str
    window: int = 0  # a query sees so many of these, the last ones; 0: all

    @property
    def heads_in_group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    @property
    def flop(self) -> int:
        """Floating-point operations of both products, including the half that a causal mask leaves out."""
        return 2 * self.query.numel * self.key.shape[2] + 2 * math.prod(self.shape) * self.key.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        images, heads, queries, _ = self.query.shape
        order = (heads, queries) if self.heads_first else (queries, heads)
        return images, *order, self.value.shape[-1]


@dataclass(frozen=True)
class Joined:
    """A value whose pieces, which nothing else reads, are written where they lie in it: these views of it."""

    name: str
    pieces: Mapping[str, View] = field(hash=False)


Fused: TypeAlias = Compute | Reduce | Scan
F = TypeVar("F", bound=Compute | Reduce | Scan | Attention)
Statement: TypeAlias = Fused | Attention | Recurrence | Library | Joined


@dataclass
class Program:
    """Statements in order. `views` says how each name of the graph reads a value that really exists."""

    graph: Graph
    choices: dict[str, str] = field(default_factory=dict)  # knobs that mattered when it was made
    statements: list[Statement] = field(default_factory=list)
    views: dict[str, Operand] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the values that exist
    dtypes: dict[str, str] = field(default_factory=dict)
    unstored: set[str] = field(default_factory=set)  # products, as large as a matrix for each vector
    roles: dict[str, Role] = field(default_factory=dict)  # of statements, for the names of kernels
    view_nodes: dict[str, Node] = field(default_factory=dict)  # names that torch can make as a view

    def add(self, statement: Statement, shape: tuple[int, ...], dtype: str) -> None:
        self.statements.append(statement)
        self.define(statement.name, shape, dtype)

    def copy(self) -> Program:
        """Copy of the program whose statements and values can be changed independently."""
        return replace(
            self,
            statements=[*self.statements],
            unstored={*self.unstored},
            roles={**self.roles},
            views={**self.views},
            shapes={**self.shapes},
            dtypes={**self.dtypes},
            view_nodes={**self.view_nodes},
        )

    @property
    def placed(self) -> dict[str, View]:
        """Views in which the values lie that are part of another."""
        joined = (s for s in self.statements if isinstance(s, Joined))
        return {name: view for s in joined for name, view in s.pieces.items()}

    def define(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.views[name] = View(name, shape, contiguous(shape))
        self.shapes[name] = shape
        self.dtypes[name] = dtype

    def fresh(self, name: str) -> str:
        """`name`, or a longer one where a value has it already."""
        while name in self.shapes or name in self.views:
            name += "_"
        return name

    def meta(self, name: str) -> Meta:
        shape = self.shapes[name]
        return Meta(shape=shape, dtype=self.dtypes[name], strides=contiguous(shape))

    def dtype_of(self, operand: Operand) -> str:
        if isinstance(operand, View):
            return self.dtypes[operand.base]
        kinds = {bool: "bool", int: "int64", float: "float32"}
        return kinds[type(operand.value)]


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def refined(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the coarsest shape whose axes make up those of two shapes of as many elements.

    None where an axis of one crosses the end of one of the other's.

    >>> refined((1024, 2048, 2), (1024, 128, 32))
    (1024, 128, 16, 2)
    >>> refined((4, 6), (6, 4)) is None
    True
    """
    if shape == other:
        return shape
    ends = {1}
    for each in (shape, other):
        step = 1
        for size in reversed(each):
            step *= size
            ends.add(step)
    steps = sorted(ends)
    if any(high % low for low, high in pairwise(steps)):
        return None
    return tuple(high // low for low, high in reversed(list(pairwise(steps))))


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """Return the view read at `shape`, as PyTorch broadcasts."""
    if view.shape == shape:
        return view
    missing = len(shape) - len(view.shape)
    strides = (0,) * missing + tuple(
        0 if size == 1 else stride for size, stride in zip(view.shape, view.strides, strict=True)
    )
    return replace(view, shape=shape, strides=strides, clips=())


def vectorisable(view: View) -> bool:
    """Return True if neighbours along the last axis are near each other in memory, or the same element."""
    strides = [stride for size, stride in zip(view.shape, view.strides, strict=True) if size > 1]
    return not strides or near(strides[-1])


def near(stride: int) -> bool:
    """Return True if elements with this stride, either way, are near each other in memory."""
    return abs(stride) <= NEAR


def turned(view: View, order: tuple[int, ...]) -> View:
    """Return the view with its axes in another order."""
    shape, strides = view.shape, view.strides
    return replace(
        view, shape=tuple(shape[axis] for axis in order), strides=tuple(strides[axis] for axis in order)
    )


def contiguous_axis(view: View) -> tuple[int, int] | None:
    """Axis along which neighbours are neighbours in memory, where it is not the last one; else None.

    It is given by the divisors of the linear index at which it begins and ends.
    """
    if vectorisable(view) or view.clips or view.move or view.table:
        return None
    for dim, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if stride == 1 and size >= _LEAST_TILE:
            low = math.prod(view.shape[dim + 1 :])
            return low, low * size
    return None


def composed(view: View, shape: tuple[int, ...], operand: View, steps: int = 1) -> View | None:
    """View of the value behind `operand` that reads what `view` reads of a value of this shape.

    `operand` is read at this shape. None where an axis of the view crosses the end of one of the value's.
    """
    whole = contiguous(shape)
    offset, rest = operand.offset, view.offset
    reach = [0] * len(shape)
    for dim, stride in enumerate(whole):
        reach[dim], rest = divmod(rest, stride)
        offset += reach[dim] * operand.strides[dim]

    def along(size: int, stride: int) -> int | None:
        """Return the operand's stride for one of the view's, which stays within one axis."""
        if size == 1 or stride == 0:
            return 0
        for dim, step in enumerate(whole):
            if shape[dim] > 1 and step <= stride < step * shape[dim] and stride % step == 0:
                reach[dim] += (size - 1) * (stride // step)
                return operand.strides[dim] * (stride // step)
        return None

    strides = [along(size, stride) for size, stride in zip(view.shape, view.strides, strict=True)]
    move = along(steps, view.move)
    if move is None or operand.clips or any(at >= size for at, size in zip(reach, shape, strict=True)):
        return None
    if any(stride is None for stride in strides):
        return None
    return replace(
        operand, shape=view.shape, strides=tuple(s or 0 for s in strides), offset=offset, move=move
    )


def of_view(producer: Compute, view: View, steps: int = 1) -> Compute | None:
    """Statement that computes a view of the producer's value; None where no strides describe what it reads.

    None, too, where the view has elements more than once, or windows, or where an element depends on its
    place. With `steps`, the view is of what each step reads.
    """
    if (
        view.clips
        or producer.by_place
        or any(not stride for size, stride in zip(view.shape, view.strides, strict=True) if size > 1)
    ):
        return None
    found: list[Operand] = []
    for operand in producer.operands:
        part = composed(view, producer.shape, operand, steps) if isinstance(operand, View) else operand
        if part is None:
            return None
        found.append(part)
    return replace(producer, operands=tuple(found), shape=view.shape)


def slots(statement: Fused | Attention) -> tuple[Operand, ...]:
    """Operands of a statement, in order."""
    if isinstance(statement, Compute):
        return statement.operands
    if isinstance(statement, Attention):
        read = (statement.query, statement.key, statement.value)
        return read if statement.mask is None else (*read, statement.mask)
    if isinstance(statement, Reduce) and statement.index is not None:
        return (statement.operand, statement.index)
    return (statement.operand,)


def reading(statement: F, read: Sequence[Operand]) -> F:
    """Return the statement with other operands, in the order of `slots`."""
    if isinstance(statement, Compute):
        return replace(statement, operands=tuple(read))
    if isinstance(statement, Attention):
        views = dict(zip(("query", "key", "value", "mask"), read, strict=False))
        return replace(statement, **views)  # type: ignore[arg-type]
    operand, *index = read
    assert isinstance(operand, View)
    if isinstance(statement, Reduce) and index:
        assert isinstance(index[0], View)
        return replace(statement, operand=operand, index=index[0])
    return replace(statement, operand=operand)


def views_of(statement: Fused | Attention | Recurrence | Joined) -> Iterator[View]:
    """Return the views a statement reads; of a recurrence, those of values from outside it."""
    if isinstance(statement, Joined):
        yield from (View(name, v.shape, contiguous(v.shape)) for name, v in statement.pieces.items())
        return
    if not isinstance(statement, Recurrence):
        yield from (o for o in slots(statement) if isinstance(o, View))
        return
    inside = {s.name for s in statement.body}
    for part in statement.body:
        yield from (view for view in views_of(part) if view.base not in inside)
