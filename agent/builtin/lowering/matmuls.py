"""Lowering of products with few vectors, or of small matrices: reductions, which fuse with their neighbours.

A product of matrices reads each of its elements often, and the library is good at that. One with a vector, or
a handful of them, is bound by reading the matrix once: each vector is a reduction of its own, and all of them
share the loop over the matrix. A language that tiles products takes those of small matrices, too, for what
comes before and after them; and of large ones, if tensor cores multiply their type.
"""

import math
from dataclasses import replace

from kernelwright.agent.builtin.ir.graph import Node, Ref
from kernelwright.agent.builtin.ir.ops import FLOATS
from kernelwright.agent.builtin.ir.program import Joined, View, broadcast, contiguous, near, turned
from kernelwright.agent.builtin.ir.text import HALVES, ITEMSIZE
from kernelwright.agent.builtin.lowering.reductions import ReductionLowering
from kernelwright.kernelbench.free_sizes.size import is_free

# Vectors that a matrix is multiplied with at most: of 4096 by 4096 eight take 5.9 ms, with the library 7.7
# (docs/LOG.md, 2026-11-23, "Products with up to eight vectors").
_MOST_VECTORS = 8
TILED = {"float32", *HALVES}
# On two cores 512 rows, columns and depth are about as fast as the library's, 4096 by 256 by 256 a fifth
# faster (docs/LOG.md, "Six products of bfloat16").
_LEAST_BY_PARTS, _LEAST_BY_PARTS_TOGETHER = 128, 1 << 27
_MOST_PACKED = 1 << 22  # elements of the right matrix, whose parts take 24 MiB; with 16 M it is no faster
# Chosen by hand.
_MOST_MULTIPLICATIONS = 1 << 27  # multiplications of a product, beyond which the library uses a GPU better
_LEAST = 256  # elements of a result from which it is worth tiles
_LEAST_BYTES = 1 << 20  # bytes of a matrix; the library's calls on smaller ones find it in the caches


class ProductLowering(ReductionLowering):
    def on_matmul(self, node: Node) -> bool:
        names = node, "self", "other"
        return self.by_vectors(*names) or self.by_few(*names) or self.large(*names)

    def on_mm(self, node: Node) -> bool:
        return self.by_few(node, "self", "mat2") or self.large(node, "self", "mat2")

    def on_mv(self, node: Node) -> bool:
        return self.by_few(node, "self", "vec")

    def on_bmm(self, node: Node) -> bool:
        return self.by_vectors(node, "self", "mat2") or self.by_tiles(node, "self", "mat2")

    def on_linear(self, node: Node) -> bool:
        names = node, "input", "weight", "bias"
        return self.by_few(*names, turn=True) or self.large(*names, turn=True)

    def on_addmm(self, node: Node) -> bool:
        settings = self.settings(node)
        if settings.get("alpha", 1) != 1 or settings.get("beta", 1) != 1:
            return False
        return self.by_few(node, "mat1", "mat2", "self") or self.large(node, "mat1", "mat2", "self")

    def by_vectors(self, node: Node, left: str, right: str) -> bool:
        """`[..., 1, k] @ [..., k, n]`, or `[..., m, k] @ [..., k, 1]`, of many matrices."""
        settings, shape, dtype = self.settings(node), node.meta.shape, node.meta.dtype
        if dtype not in ("float32", "float64") or math.prod(shape[:-2]) == 1 or 1 not in shape[-2:]:
            return False
        a, b = self.operand(settings[left]), self.operand(settings[right])  # type: ignore[arg-type]
        if not isinstance(a, View) or not isinstance(b, View) or min(len(a.shape), len(b.shape)) < 2:
            return False
        length = a.shape[-1]
        if length <= 1 or math.prod(shape) == 1:
            return False
        a, b = broadcast(a, (*shape[:-2], shape[-2], length)), broadcast(b, (*shape[:-2], length, shape[-1]))
        matrix, vector = (b, _turned(a)) if shape[-2] == 1 else (_turned(a), b)  # [..., k, n], [..., k, 1]
        reduced = len(shape) - 2
        if not near(matrix.strides[-1]):
            matrix, vector, reduced = _turned(matrix), _turned(vector), reduced + 1
        if not near(matrix.strides[-1]):
            return False
        vector = broadcast(vector, matrix.shape)
        products = self.fresh(f"{node.name}_products")
        if not self.compute(products, "mul", (matrix, vector), {}, matrix.shape, dtype):
            return False
        self.program.unstored.add(products)
        self.program.roles[self.view_of(products).base] = "product"
        self.reduce(node.name, "sum", self.view_of(products), (reduced,), False, dtype)
        self.program.define(node.name, shape, dtype)
        return True

    def by_few(self, node: Node, left: str, right: str, bias: str = "", turn: bool = False) -> bool:
        """`[m, k] @ [k, n]` with few rows or few columns; leading axes of the left count as its rows."""
        settings, shape, dtype = self.settings(node), node.meta.shape, node.meta.dtype
        added = settings.get(bias)
        if dtype not in FLOATS or (isinstance(added, Ref) and added.ref not in self.program.views):
            return False
        a, b = self.rows(settings[left], dtype), self.rows(settings[right], dtype, last=not turn)
        if a is None or b is None:
            return False
        rows, columns = a.shape[0], b.shape[0]
        across = rows <= columns  # the vectors are the rows of `a`
        vectors, matrix = (a, b) if across else (b, a)
        reduced = 1
        if not near(matrix.strides[-1]):
            matrix, reduced = _turned(matrix), 0
        if vectors.shape[0] > _MOST_VECTORS or matrix.numel * ITEMSIZE[dtype] < _LEAST_BYTES:
            return False
        if min(matrix.shape) == 1 or not near(matrix.strides[-1]) or self.choice("products") == "library":
            return False
        if not near(vectors.strides[-1]):
            vectors = self.packed(settings[left if across else right], dtype, last=not (across or turn))
        product = self.fresh(f"{node.name}_product") if added is not None else node.name
        places: dict[str, View] = {}
        for number in range(vectors.shape[0]):
            strides = (vectors.strides[1], 0) if reduced == 0 else (0, vectors.strides[1])
            offset = vectors.offset + number * vectors.strides[0]
            vector = View(vectors.base, matrix.shape, strides, offset)
            only = product if vectors.shape[0] == 1 else self.fresh(f"{node.name}_{number}")
            self.dot(only, matrix, vector, reduced, dtype)
            place = View(product, (columns,), (1,), number * columns)
            places[only] = place if across else View(product, (rows,), (columns,), number)
        if vectors.shape[0] > 1:
            self.program.statements.append(Joined(product, places))
        self.program.define(product, shape, dtype)
        self.with_bias(node, product, added)
        return True

    def large(self, node: Node, left: str, right: str, bias: str = "", turn: bool = False) -> bool:
        return self.by_parts(node, left, right, bias, turn) or self.by_tiles(node, left, right, bias, turn)

    def by_parts(self, node: Node, left: str, right: str, bias: str, turn: bool) -> bool:
        """`[..., m, k] @ [k, n]` of float32 as six products of bfloat16, where none of the sizes is small.

        It is a choice where the schedule has the knob, which a language gives it on a CPU that has tiles.
        """
        settings, shape, dtype = self.settings(node), node.meta.shape, node.meta.dtype
        added = settings.get(bias)
        if "gemm" not in self.schedule.values or dtype != "float32":
            return False
        if isinstance(added, Ref) and added.ref not in self.program.views:
            return False
        a, b = self.matrix(settings[left]), self.matrix(settings[right])
        if a is None or b is None or len(b.shape) != 2 or not near(a.strides[-1]) or 1 not in b.strides:
            return False
        b = _turned(b) if turn else b
        sizes = math.prod(shape[:-1]), shape[-1], a.shape[-1]
        if is_free(*sizes) or min(sizes) < _LEAST_BY_PARTS or math.prod(sizes) < _LEAST_BY_PARTS_TOGETHER:
            return False
        if sizes[1] * sizes[2] > _MOST_PACKED or self.choice("gemm") != "bf16x6":
            return False
        product = self.fresh(f"{node.name}_product") if added is not None else node.name
        a, b = broadcast(a, (*shape[:-1], a.shape[-1])), broadcast(b, (*shape[:-2], *b.shape))
        if near(b.strides[-1]):
            a, b, reduced = _inserted(a, -1, shape[-1]), _inserted(b, -3, shape[-2]), -2
        else:
            a, b, reduced = _inserted(a, -2, shape[-1]), _inserted(_turned(b), -3, shape[-2]), -1
        self.dot(product, a, b, len(a.shape) + reduced, dtype)
        self.with_bias(node, product, added)
        return True

    def matrix(self, arg: object) -> View | None:
        """Return what an argument reads if that is a float32 tensor with rows, as it lies in memory."""
        view = self.program.views.get(arg.ref) if isinstance(arg, Ref) else None
        if not isinstance(view, View) or view.clips or len(view.shape) < 2:
            return None
        return view if self.program.dtypes[view.base] == "float32" else None

    def by_tiles(self, node: Node, left: str, right: str, bias: str = "", turn: bool = False) -> bool:
        """`[..., m, k] @ [..., k, n]` of small matrices; with `turn`, the right one is `[n, k]`."""
        settings, shape, dtype = self.settings(node), node.meta.shape, node.meta.dtype
        added = settings.get(bias)
        if dtype not in TILED or self.schedule.value("products") == "own" or len(shape) < 2:
            return False
        if isinstance(added, Ref) and added.ref not in self.program.views:
            return False
        a, b = self.operand(settings[left]), self.operand(settings[right])  # type: ignore[arg-type]
        if not isinstance(a, View) or not isinstance(b, View) or min(len(a.shape), len(b.shape)) < 2:
            return False
        if a.clips or b.clips or {self.program.dtypes[a.base], self.program.dtypes[b.base]} != {dtype}:
            return False
        b = _turned(b) if turn else b
        (*images, rows, columns), depth = shape, a.shape[-1]
        if min(rows, columns, depth) == 1 or not rows * columns * depth:
            return False
        large = math.prod(shape) * depth > _MOST_MULTIPLICATIONS
        if large and (self.schedule.value("products") != "all" or dtype not in HALVES):
            return False
        if math.prod(images) * rows * columns < _LEAST:
            return False
        a, b = broadcast(a, (*images, rows, depth)), broadcast(b, (*images, depth, columns))
        if near(b.strides[-1]):  # [..., m, k, n]
            a, b, reduced = _inserted(a, -1, columns), _inserted(b, -3, rows), -2
        elif near(b.strides[-2]) and near(a.strides[-1]):  # [..., m, n, k]
            a, b, reduced = _inserted(a, -2, columns), _inserted(_turned(b), -3, rows), -1
        else:
            return False
        if self.choice("products") == "library":
            return False
        product = self.fresh(f"{node.name}_product") if added is not None else node.name
        self.dot(product, a, b, len(a.shape) + reduced, dtype)
        self.with_bias(node, product, added)
        return True

    def with_bias(self, node: Node, product: str, added: object) -> None:
        if isinstance(added, Ref):
            addend = self.operand(added)
            assert addend is not None
            operands = self.view_of(product), addend
            computed = self.compute(node.name, "add", operands, {}, node.meta.shape, node.meta.dtype)
            assert computed

    def rows(self, arg: object, dtype: str, last: bool = False) -> View | None:
        """Return the vectors of a product's operand as rows; with `last`, they are its columns."""
        view = self.program.views.get(arg.ref) if isinstance(arg, Ref) else None
        if (
            not isinstance(view, View)
            or view.clips
            or not view.shape
            or self.program.dtypes[view.base] != dtype
        ):
            return None
        *sizes, length = view.shape
        *steps, step = view.strides
        if len(sizes) == 0:
            return replace(view, shape=(1, length), strides=(0, step))
        if len(sizes) == 1:
            return _turned(view) if last else view
        if last or steps != [steps[-1] * beyond for beyond in contiguous(tuple(sizes))]:
            return None
        return replace(view, shape=(math.prod(sizes), length), strides=(steps[-1], step))

    def packed(self, arg: object, dtype: str, last: bool) -> View:
        """Return the same of a copy, in which the elements of a vector lie together."""
        assert isinstance(arg, Ref)
        view = self.view_of(arg.ref)
        turned = last and len(view.shape) == 2
        name = self.copied(arg.ref, (1, 0)) if turned else self.copied_as_it_reads(arg.ref, view)
        packed = self.rows(Ref(ref=name), dtype, last)
        assert packed is not None
        return packed

    def dot(self, name: str, matrix: View, vector: View, reduced: int, dtype: str) -> None:
        """Add the sum of products, which 16-bit types sum in float."""
        wide = "float32" if dtype in HALVES else dtype
        products = self.fresh(f"{name}_products")
        self.compute(products, "mul", (matrix, vector), {}, matrix.shape, wide)
        self.program.unstored.add(products)
        self.program.roles[self.view_of(products).base] = "product"
        total = name if wide == dtype else self.fresh(f"{name}_total")
        self.reduce(total, "sum", self.view_of(products), (reduced,), False, wide)
        if wide != dtype:
            self.compute(name, "convert", (self.view_of(total),), {}, self.program.shapes[total], dtype)


def _inserted(view: View, place: int, size: int) -> View:
    """Return the view with a new axis at a place that counts from the end, along which it stays."""
    at = len(view.shape) + 1 + place
    shape, strides = view.shape, view.strides
    return replace(
        view, shape=(*shape[:at], size, *shape[at:]), strides=(*strides[:at], 0, *strides[at:]), clips=()
    )


def _turned(view: View) -> View:
    """Return the view with its last two axes exchanged."""
    rank = len(view.shape)
    return turned(view, (*range(rank - 2), rank - 1, rank - 2))
