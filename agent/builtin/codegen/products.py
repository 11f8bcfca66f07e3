"""Products of two matrices, as kernels that tile them see a region: what is multiplied, along which axes.

A linear layer with a bias and a ReLU, x of [512, 256] and w of [128, 256], is one region over 512 x 128 x
256 elements, of which the last axis is reduced:

    %products = mul(%x[512, 128×0, 256], %w[512×0, 128×256, 256])    the elements
    %linear = reduce sum(%products, axes [2])                        the rows: 512 x 128 results
    %relu = relu(%linear + %bias)                                    the epilogue, once for each result

x varies down the result and along the depth, w along the result and along the depth: so this is a product
of matrices, however its axes lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.builtin.ir.program import Compute, Fused, Reduce, View, views_of
from kernelwright.agent.builtin.ir.text import HALVES
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Side:
    """An operand of a product: what is read for it, and the statements of its prologue, in order.

    Without a prologue it is one access, as it lies in memory.
    """

    operand: View
    accesses: tuple[Access, ...]
    prologue: tuple[Compute, ...] = ()

    @property
    def access(self) -> Access:
        assert not self.prologue
        return self.accesses[0]


@dataclass(frozen=True)
class Product:
    """The sum of left * right along `depth`; each varies along axes of its own, and both along `images`."""

    left: Side
    right: Side
    reduction: Reduce
    images: Axes
    down: Axes
    along: Axes
    depth: Axes

    @property
    def prologue(self) -> tuple[Compute, ...]:
        return (*self.left.prologue, *self.right.prologue)


def product_of(planned: Plan) -> Product | None:
    """Return the product that a kernel computes of two matrices, if that is one, and they lie in memory."""
    found = products_of(planned)
    return found[0] if len(found) == 1 and not found[0].prologue else None


def products_of(planned: Plan) -> tuple[Product, ...]:
    """Return the products that a kernel computes; none if it computes anything else for each element.

    All of them have the same axes: the gate and the other half of a SwiGLU are two, of one left matrix.
    """
    region, space = planned.region, planned.region.space
    elements = [s for s in region.statements if planned.level(s.name) == "element"]
    reductions = [s for s in region.statements if isinstance(s, Reduce)]
    if not space.reduced or planned.totals or space.clips or region.recurrence:
        return ()
    if any(isinstance(s, Compute) and s.by_place for s in region.statements):
        return ()
    if any(s.name in planned.outputs for s in elements):
        return ()
    found = [_product(planned, reduction, elements) for reduction in reductions]
    products = tuple(product for product in found if product is not None)
    inside = {s.name for p in products for s in p.prologue} | {p.reduction.operand.base for p in products}
    if len(products) < len(reductions) or len(inside) < len(elements):
        return ()
    return products if len({(p.images, p.down, p.along, p.depth) for p in products}) == 1 else ()


def _product(planned: Plan, reduction: Reduce, elements: Sequence[Fused]) -> Product | None:
    mul = next((s for s in elements if s.name == reduction.operand.base), None)
    if not isinstance(mul, Compute) or mul.op != "mul" or reduction.op != "sum":
        return None
    if reduction.dtype != "float32" and reduction.dtype not in HALVES:
        return None
    sides = [_side(planned, o, elements) for o in mul.operands if isinstance(o, View)]
    if len(sides) != 2:
        return None
    left, right = sides
    if left is None or right is None:
        return None
    kinds: dict[tuple[bool, bool, bool], list[int]] = {}
    for axis, inside in enumerate(planned.inner):
        kind = inside, _varies(left, axis), _varies(right, axis)
        kinds.setdefault(kind, []).append(axis)
    images, depth = kinds.pop((False, True, True), []), kinds.pop((True, True, True), [])
    down, along = kinds.pop((False, True, False), []), kinds.pop((False, False, True), [])
    if kinds or not down or not along or not depth:
        return None
    if down[0] > along[0]:  # what lies further out is above
        left, right, down, along = right, left, along, down
    return Product(left, right, reduction, *map(tuple, (images, down, along, depth)))


def _varies(side: Side, axis: int) -> bool:
    return any(access.strides[axis] for access in side.accesses)


def _side(planned: Plan, operand: View, elements: Sequence[Fused]) -> Side | None:
    """Return an operand with all that it is computed from; None if that is not read from memory as it is."""
    access = planned.access(operand, "element")
    if access is not None:
        return None if access.table or access.move else Side(operand, (access,))
    by_name = {s.name: s for s in elements}
    needed, todo, accesses = set(), [operand.base], []
    while todo:
        statement = by_name.get(todo.pop())
        if not isinstance(statement, Compute) or statement.op == "take":
            return None
        needed.add(statement.name)
        for view in views_of(statement):
            found = planned.access(view, "element")
            if found is None:
                todo.append(view.base)
            elif found.table or found.move:
                return None
            else:
                accesses.append(found)
    prologue = tuple(s for s in elements if s.name in needed and isinstance(s, Compute))
    return Side(operand, tuple(dict.fromkeys(accesses)), prologue)
