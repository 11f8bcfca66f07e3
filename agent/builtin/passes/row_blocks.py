"""Blocks of rows: a large product that is reduced away again is computed in parts that are never all there.

The last linear layer of a language model makes a row of as many logits as there are words, and a loss makes
one number of each. So do the gradients, two products with the logits' own. A loop over blocks of rows needs
the memory of one block's logits (Liger Kernel, https://arxiv.org/abs/2410.10989; Wijmans et al., Cut Your
Losses in Large-Vocabulary Language Models, https://arxiv.org/abs/2411.09009). With x of [2048, 512], the task

    return F.cross_entropy(F.linear(x, weight), target)

is traced with logits of [2048, 32000], 250 MiB, which is divided into a graph for a block, for any number of
rows, and one around it:

    %in_blocks = kernelwright.row_blocks([%x, %target], [%weight], [sum, sum], 128, 2048)

What comes of a block is written into its rows of a result (`rows`), or it is added to those before (`sum`;
`into`, where a product adds to them itself). Nothing here knows a loss: each value has its axis of rows, or
none, and where an operator mixes rows otherwise than by a sum, there are no blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from kernelwright.agent.builtin.ir.graph import ROW_BLOCKS, Arg, Graph, Input, Meta, Node, Ref
from kernelwright.agent.builtin.ir.ops import pointwise_name
from kernelwright.agent.builtin.ir.program import contiguous
from kernelwright.agent.builtin.ir.text import ITEMSIZE
from kernelwright.kernelbench.free_sizes.size import FreeSize, is_free

NAME = "block_rows"  # of the number of rows of a block, in its function
# Chosen by hand.
_LEAST_COLUMNS = 4096  # of a product from which it is worth a loop
_LEAST_BLOCKS = 4
_LEAST_ROWS = 16  # of a block
_PRODUCTS = {"aten.linear.default", "aten.mm.default", "aten.addmm.default"}
_REDUCTIONS = {"aten.sum.dim_IntList", "aten.amax.default", "aten.amin.default"}
_UNCHANGED = {"aten._to_copy.default", "aten.clone.default", "aten.alias.default", "aten.detach.default"}
_VIEWS = {"aten.permute.default", "aten.t.default", "aten.transpose.int", "aten.unsqueeze.default"}
_VIEWS |= {"aten.squeeze.dims", "aten.alias.default", "aten.detach.default"}
_CONSTANTS = {"aten.scalar_tensor.default", "aten.arange.start_step", "aten.full.default"}


class _Mixed(Exception):  # noqa: N818 - a property of the graph, not a fault
    """Rows are used in another way than one by one, or all in a sum."""


@dataclass(frozen=True)
class RowBlocks:
    """A graph with a loop over blocks of `step` rows, and the graph of a block, whose rows are free."""

    around: Graph
    block: Graph
    step: int


def with_row_blocks(graph: Graph, bytes_of_block: int, in_tiles: Set[str] = frozenset()) -> RowBlocks | None:
    """Return the graph with its largest product in blocks of about so many bytes; None where it has none.

    `in_tiles`: dtypes of which kernels compute products with what follows, element by element: of these only
    what is reduced again is worth blocks.
    """
    wide = [node for node in graph.nodes if node.op in _PRODUCTS and _is_wide(node)]
    if graph.parts or graph.left or graph.mutations or not wide:
        return None
    graph = graph.model_copy(update={"nodes": tuple(_needed(graph.nodes, graph.results))})
    first = wide[0]
    rows, columns = first.meta.shape
    step = max(_LEAST_ROWS, bytes_of_block // (columns * ITEMSIZE[first.meta.dtype]))
    step = 1 << (step.bit_length() - 1)
    if not is_free(rows) and rows < _LEAST_BLOCKS * step:
        return None
    try:
        return _Division(graph, first, step, first.meta.dtype in in_tiles).divided()
    except _Mixed:
        return None


def _is_wide(node: Node) -> bool:
    if len(node.outputs) != 1 or len(node.meta.shape) != 2 or node.meta.dtype not in ITEMSIZE:
        return False
    rows, columns = node.meta.shape
    return not is_free(columns) and columns >= _LEAST_COLUMNS and rows not in (1, columns)


@dataclass
class _Division:
    graph: Graph
    first: Node
    step: int
    in_tiles: bool
    axes: dict[str, int | None] = field(default_factory=dict)  # of rows; None: it has none
    large: set[str] = field(default_factory=set)  # what is computed from the product, row by row
    sums: set[str] = field(default_factory=set)  # what is summed over its rows
    after: set[str] = field(default_factory=set)  # what needs these sums

    def __post_init__(self) -> None:
        self.metas = self.graph.metas()
        self.rows = self.first.meta.shape[0]
        self.nodes = {node.name: node for node in self.graph.nodes}

    def divided(self) -> RowBlocks:
        self.follow()
        block = self.of_block()
        inside = {node.name for node in block}
        if self.in_tiles and not self.sums and not any(map(self.reduces, block)):
            raise _Mixed
        read = dict.fromkeys(name for node in block for name in node.inputs if name not in inside)
        if any(self.axes.get(name) not in (0, None) or name in self.after for name in read):
            raise _Mixed
        results = [node.name for node in block if self.is_result(node.name, inside)]
        if not results or self.first.name in results:
            raise _Mixed
        if any(name not in self.sums and self.axes[name] != 0 for name in results):
            raise _Mixed
        kinds = [self.kind(self.nodes[name]) for name in results]
        by_rows = [name for name in read if self.axes[name] == 0]
        whole = [name for name in read if self.axes[name] is None]
        around = self.around(block, by_rows, whole, results, kinds)
        return RowBlocks(around, self.block(block, by_rows, whole, results, kinds), self.step)

    def reduces(self, node: Node) -> bool:
        """Return True if a node takes elements of the product together."""
        return node.op in _REDUCTIONS or (node.op in _PRODUCTS and bool(self.large.intersection(node.inputs)))

    def is_result(self, name: str, inside: set[str]) -> bool:
        """Return True for what is read outside a block, but for what is computed there again."""
        if name not in self.large | self.sums:
            return False
        readers = (node.name for node in self.graph.nodes if name in node.inputs)
        return name in self.graph.results or any(reader not in inside for reader in readers)

    def kind(self, node: Node) -> str:
        if node.name not in self.sums:
            return "rows"
        return "into" if node.op == "aten.mm.default" and node.meta.dtype == "float32" else "sum"

    # Which axis is that of rows.

    def follow(self) -> None:
        for item in self.graph.inputs:
            shape = item.meta.shape
            has_rows = item.kind == "user" and not item.order and bool(shape) and _same(shape[0], self.rows)
            self.axes[item.name] = 0 if has_rows else None
        for node in self.graph.nodes:
            needs = set(node.inputs)
            if needs & (self.sums | self.after):
                if needs & self.large:
                    raise _Mixed
                self.after.add(node.name)
                self.axes[node.name] = None
                continue
            is_large = node is self.first or bool(needs & self.large)
            try:
                axis = self.axis_of(node)
            except _Mixed:
                if is_large:
                    raise
                axis = None  # it is computed before the loop, and read there as a whole if at all
                if any(_same(size, self.rows) for meta in node.outputs for size in meta.shape[:1]):
                    axis = 0
            if axis == "sum" and is_large:
                self.sums.add(node.name)
                axis = None
            elif is_large:
                self.large.add(node.name)
            self.axes[node.name] = axis if isinstance(axis, int) else None

    def axis_of(self, node: Node) -> int | str | None:
        """Return a value's axis of rows, "sum" if it is one over them, None if it has none."""
        own = {name: self.axes.get(name) for name in node.inputs}
        if not any(isinstance(axis, int) for axis in own.values()):
            return None
        if len(node.outputs) != 1:
            raise _Mixed
        if pointwise_name(node.op) is not None or node.op in _UNCHANGED:
            return self.aligned(node)
        if node.op in _REDUCTIONS:
            return self.reduced(node)
        if node.op in _PRODUCTS:
            return self.product(node)
        axis = self.of(node.args[0])
        if axis is None:
            raise _Mixed
        rank = len(self.metas[node.inputs[0]].shape)
        rest = node.args[1:]
        match node.op:
            case "aten.permute.default":
                (order,) = rest
                assert isinstance(order, tuple)
                return [_from_start(dim, rank) for dim in order].index(axis)
            case "aten.t.default":
                return 1 - axis if rank == 2 else axis
            case "aten.transpose.int":
                one, other = (_from_start(dim, rank) for dim in rest)
                return {one: other, other: one}.get(axis, axis)
            case "aten.unsqueeze.default":
                return axis + (_from_start(rest[0], rank + 1) <= axis)
            case "aten.squeeze.dims":
                dims = [_from_start(dim, rank) for dim in _listed(rest[0])]
                if axis in dims:
                    raise _Mixed
                return axis - sum(dim < axis for dim in dims)
            case "aten.gather.default":
                if self.of(rest[1]) == axis != _from_start(rest[0], rank):
                    return axis
        raise _Mixed

    def is_row_by_row(self, node: Node) -> bool:
        """Return True if a row of the result needs one row of the operands, and no product."""
        try:
            return node.op not in _PRODUCTS and isinstance(self.axis_of(node), int)
        except _Mixed:
            return False

    def of(self, arg: Arg) -> int | None:
        return self.axes.get(arg.ref) if isinstance(arg, Ref) else None

    def aligned(self, node: Node) -> int:
        """Return the axis of a pointwise operator, whose operands are broadcast."""
        rank = len(node.meta.shape)
        found = set()
        for name in node.inputs:
            axis, shape = self.axes.get(name), self.metas[name].shape
            if axis is not None:
                found.add(axis + rank - len(shape))
        if len(found) != 1:
            raise _Mixed
        (axis,) = found
        for name in node.inputs:
            shape = self.metas[name].shape
            place = axis - (rank - len(shape))
            if self.axes.get(name) is None and place >= 0 and shape[place] != 1:
                raise _Mixed
        return axis

    def reduced(self, node: Node) -> int | str:
        axis, rank = self.of(node.args[0]), len(self.metas[node.inputs[0]].shape)
        assert axis is not None
        dims = [_from_start(dim, rank) for dim in _listed(node.args[1])] if len(node.args) > 1 else []
        dims = dims or list(range(rank))
        if axis in dims:
            if node.op != "aten.sum.dim_IntList":
                raise _Mixed
            return "sum"
        keeps = len(node.args) > 2 and node.args[2] is True
        return axis if keeps else axis - sum(dim < axis for dim in dims)

    def product(self, node: Node) -> int | str:
        if node.kwargs or any(len(self.metas[name].shape) > 2 for name in node.inputs):
            raise _Mixed
        *added, left, right = node.args[:3] if node.op == "aten.addmm.default" else node.args[:2]
        added = [*added, *node.args[2:3]] if node.op == "aten.linear.default" else added
        if any(self.of(arg) is not None for arg in added):
            raise _Mixed
        of_left, of_right = self.of(left), self.of(right)
        if of_left == 0 and of_right is None:
            return 0
        if of_left == 1 and of_right == 0 and node.op == "aten.mm.default":
            return "sum"
        raise _Mixed

    # The two graphs.

    def of_block(self) -> list[Node]:
        """Return the nodes of a block: what needs the product, and what only that reads and is cheap."""
        inside = self.large | self.sums
        for node in reversed(self.graph.nodes):
            if node.name in inside | self.after or node.name in self.graph.results:
                continue
            readers = [each.name in inside for each in self.graph.nodes if node.name in each.inputs]
            is_constant = node.op in _CONSTANTS and not is_free(*_numbers(node.args))
            costs_nothing = is_constant or node.op in _VIEWS
            if (any(readers) and costs_nothing) or (readers and all(readers) and self.is_row_by_row(node)):
                inside.add(node.name)
        found = [node for node in self.graph.nodes if node.name in inside]
        # Numbers that depend on the sizes of the whole are not those of a block.
        if any(is_free(*_numbers(node.args)) for node in found):
            raise _Mixed
        return found

    def around(
        self,
        block: Sequence[Node],
        by_rows: Sequence[str],
        whole: Sequence[str],
        results: Sequence[str],
        kinds: Sequence[str],
    ) -> Graph:
        gone = {node.name for node in block}
        kept = [n for n in self.graph.nodes if n.name not in gone or n.name not in self.large | self.sums]
        name = "in_blocks"
        while name in self.metas:
            name += "_"
        refs = [tuple(Ref(ref=each) for each in names) for names in (by_rows, whole)]
        loop = Node.model_construct(  # which keeps sizes that are free
            name=name,
            op=ROW_BLOCKS,
            args=(*refs, tuple(kinds), self.step, self.rows),
            kwargs={},
            outputs=tuple(self.metas[each] for each in results),
        )
        items = [
            Node(
                name=each,
                op="getitem",
                args=(Ref(ref=name), place),
                kwargs={},
                outputs=(self.laid_out(each, self.rows),),
            )
            for place, each in enumerate(results)
        ]
        before = [node for node in kept if node.name not in self.after]
        behind = [node for node in kept if node.name in self.after]
        nodes = _needed([*before, loop, *items, *behind], self.graph.results)
        return self.graph.model_copy(update={"nodes": tuple(nodes)})

    def block(
        self,
        nodes: Sequence[Node],
        by_rows: Sequence[str],
        whole: Sequence[str],
        results: Sequence[str],
        kinds: Sequence[str],
    ) -> Graph:
        rows = FreeSize(self.step, {(NAME,): 1})
        inputs = [Input(name=n, kind="user", target=n, meta=self.laid_out(n, rows)) for n in by_rows]
        inputs += [Input(name=n, kind="user", target=n, meta=self.laid_out(n, rows)) for n in whole]
        made = []
        for node in nodes:
            metas = (self.laid_out(node.name, rows),)
            node = node.model_copy(update={"outputs": metas})
            if node.name in results and kinds[results.index(node.name)] == "into":
                total = f"{node.name}_total"
                inputs.append(Input(name=total, kind="user", target=total, meta=metas[0]))
                args = (Ref(ref=total), *node.args)
                node = node.model_copy(update={"op": "aten.addmm_.default", "args": args})
            made.append(node)
        return Graph(
            arguments=tuple(item.target for item in inputs),
            fixed={},
            constructor=(),
            inputs=tuple(inputs),
            nodes=tuple(made),
            mutations=(),
            outputs=tuple(results),
            structure="tuple",
            left={},
            parts={},
        )

    def laid_out(self, name: str, rows: int) -> Meta:
        """Return the meta of a value with so many rows, contiguous unless it is a view."""
        meta, axis = self.metas[name], self.axes[name]
        if axis is None:
            return meta if self.nodes.get(name) is None or self.nodes[name].op in _VIEWS else _packed(meta)
        shape = (*meta.shape[:axis], rows, *meta.shape[axis + 1 :])
        node = self.nodes.get(name)
        if node is None or node.op not in _VIEWS:
            return _packed(meta.model_copy(update={"shape": shape}))
        if any(size > 1 and stride > meta.strides[axis] for size, stride in _pairs(meta)):
            raise _Mixed  # strides that depend on the number of rows
        return meta.model_copy(update={"shape": shape})


def _packed(meta: Meta) -> Meta:
    return meta.model_copy(update={"strides": contiguous(meta.shape)})


def _pairs(meta: Meta) -> Iterator[tuple[int, int]]:
    return zip(meta.shape, meta.strides, strict=True)


def _needed(nodes: Sequence[Node], results: Sequence[str]) -> list[Node]:
    wanted = set(results)
    kept = []
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


def _same(size: int, other: int) -> bool:
    """Return True if two sizes are equal whatever the free ones are."""
    return size == other and not is_free(size - other)


def _from_start(dim: Arg, rank: int) -> int:
    assert isinstance(dim, int)
    return dim % rank if rank else 0


def _listed(dims: Arg) -> Sequence[Arg]:
    return dims if isinstance(dims, tuple) else () if dims is None else (dims,)


def _numbers(args: Arg) -> list[object]:
    if isinstance(args, tuple):
        return [number for arg in args for number in _numbers(arg)]
    return [args]
