"""One-hot rows: the sum of a row that has one number at an index, and zeros, is that number.

The gradient of a loss is such a row, and softmax's gradient sums it. With index of [512] and g of [512, 1],

    one = torch.where(torch.arange(32000) == index[:, None], g, 0.0)
    return one - p * one.sum(1, keepdim=True)

is lowered to

    %eq = eq(%arange[512×0, 32000], %index[512×1, 32000×0]) in int64 : bool[512, 32000]
    %one = where(%eq[512, 32000], %g[512×1, 32000×0], 0.0) : float32[512, 32000]
    %sum_1 = reduce sum(%one[512, 32000], axes [1]) : float32[512, 1]

and for the sum, 32,000 comparisons and additions of each row become two comparisons:

    %least = ge(%index[512, 1], 0) in int64 : bool[512, 1]
    %most = lt(%index[512, 1], 32000) in int64 : bool[512, 1]
    %is_there = logical_and(%least[512, 1], %most[512, 1]) : bool[512, 1]
    %sum_1 = where(%is_there[512, 1], %g[512, 1], 0.0) : float32[512, 1]

Nothing is rounded in either; a sum of -0.0 and zeros would be 0.0, and is -0.0.
"""

from dataclasses import replace

from kernelwright.agent.builtin.ir.program import (
    Compute,
    Constant,
    Library,
    Operand,
    Program,
    Reduce,
    Statement,
    View,
    contiguous,
)


def one_hot(program: Program) -> Program:
    """Replace sums of one-hot rows by what the row has at its index."""
    made = {s.name: s for s in program.statements}
    found: dict[str, list[Compute]] = {}
    trial = program.copy()
    for statement in program.statements:
        if isinstance(statement, Reduce) and (picked := _picked(statement, made, trial)):
            found[statement.name] = picked
    if not found:
        return program
    trial.statements = [s for old in program.statements for s in found.get(old.name, [old])]
    return trial


def _picked(total: Reduce, made: dict[str, Statement], program: Program) -> list[Compute] | None:
    """Return what computes the sum of one-hot rows from their index and their number; None for other sums."""
    where = made.get(total.operand.base)
    if total.op != "sum" or not isinstance(where, Compute) or where.op != "where":
        return None
    condition, number, zero = where.operands
    rows = total.operand.shape
    if not total.operand.linear or where.shape != rows or total.dtype != where.dtype or len(total.dims) != 1:
        return None
    equal = made.get(condition.base) if isinstance(condition, View) and condition.linear else None
    if not isinstance(equal, Compute) or equal.op != "eq" or equal.shape != rows or zero != Constant(0.0):
        return None
    if equal.compute_dtype not in ("int32", "int64"):  # 2.5 is within the row, and at no place of it
        return None
    axis = total.dims[0]
    for places, index in (equal.operands, equal.operands[::-1]):
        bounds = _bounds(places, axis, made)
        of_rows = [_without(each, axis, total.shape) for each in (index, number)]
        if bounds is None or of_rows[0] is None or of_rows[1] is None:
            continue
        return _at_index(
            total, of_rows[0], of_rows[1], bounds, (equal.compute_dtype, where.compute_dtype), program
        )
    return None


def _at_index(
    total: Reduce,
    index: Operand,
    number: Operand,
    bounds: tuple[int, int],
    computes: tuple[str, str],
    program: Program,
) -> list[Compute]:
    """Return statements that give a row's number where its index is one of the row's, and zero elsewhere."""
    statements: list[Compute] = []

    def add(name: str, op: str, operands: tuple[Operand, ...], dtype: str, computed_in: str) -> View:
        if name != total.name:
            name = program.fresh(name)
            program.define(name, total.shape, dtype)
        statements.append(Compute(name, op, operands, {}, total.shape, dtype, computed_in))
        return View(name, total.shape, contiguous(total.shape))

    least = add("least", "ge", (index, Constant(bounds[0])), "bool", computes[0])
    most = add("most", "lt", (index, Constant(bounds[1])), "bool", computes[0])
    is_there = add("is_there", "logical_and", (least, most), "bool", "bool")
    add(total.name, "where", (is_there, number, Constant(0.0)), total.dtype, computes[1])
    return statements


def _bounds(places: Operand, axis: int, made: dict[str, Statement]) -> tuple[int, int] | None:
    """Return the first of the integers in turn along an axis, and the one after the last; None for others."""
    if not isinstance(places, View) or places.offset or places.clips or places.move or places.table:
        return None
    arange = made.get(places.base)
    strides = [0 if number != axis else 1 for number in range(len(places.shape))]
    if not isinstance(arange, Library) or arange.node.op != "aten.arange.start_step":
        return None
    first, end, *step = arange.node.args
    if list(places.strides) != strides or step not in ([], [1]):
        return None
    if not isinstance(first, int) or not isinstance(end, int) or end - first != places.shape[axis]:
        return None
    return first, end


def _without(operand: Operand, axis: int, shape: tuple[int, ...]) -> Operand | None:
    """Return what an operand has in each row, at a sum's shape; None if that changes along the axis."""
    if not isinstance(operand, View):
        return operand
    if operand.strides[axis] or operand.clips or operand.move or operand.table:
        return None
    if len(shape) == len(operand.shape):
        return replace(operand, shape=shape)
    strides = (*operand.strides[:axis], *operand.strides[axis + 1 :])
    return replace(operand, shape=shape, strides=strides)
