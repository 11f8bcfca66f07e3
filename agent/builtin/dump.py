"""Every form of one task as text, from the traced graph to the loops of its kernels: `compile --dump`.

    %sub = sub(%x[2048, 4096], %amax[2048×1, 4096×0]) : float32[2048, 4096]

An operand is shown with the shape that it is read at. `size×stride` is an axis along which it does not lie
contiguously, in elements: 4096×0 reads one element 4096 times, as broadcasting does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from textwrap import wrap

from kernelwright.agent.builtin.ir.graph import Arg, DType, Graph, Input, Meta, Node, Ref
from kernelwright.agent.builtin.ir.program import (
    Attention,
    Compute,
    Joined,
    Library,
    Operand,
    Program,
    Recurrence,
    Reduce,
    Scan,
    Statement,
    View,
    contiguous,
)
from kernelwright.agent.builtin.ir.uses import Unit, statements_of
from kernelwright.agent.builtin.scheduling.launches import HorizontalFusion, Launch, RegionCall
from kernelwright.agent.builtin.scheduling.loop_nest import Plan


class Dump:
    """Collects the text of each form, for the `watch` of `compile_graph`."""

    def __init__(self) -> None:
        self._sections: list[tuple[list[str], str]] = []  # steps that leave the same text are one

    def __call__(self, step: str, form: object) -> None:
        now = text(form)
        if self._sections and self._sections[-1][1] == now:
            self._sections[-1][0].append(step)
        else:
            self._sections.append(([step], now))

    def __str__(self) -> str:
        """Each form below the step that it is the result of, and the steps that change nothing of it."""
        parts = []
        for (step, *idle), form in self._sections:
            parts += [
                f"== {step}",
                form,
                *(wrap(f"-- unchanged by {', '.join(dict.fromkeys(idle))}", 100) if idle else ()),
                "",
            ]
        return "\n".join(parts)


@singledispatch
def text(form: object) -> str:
    """Return a form as lines. Raises TypeError for what is none."""
    raise TypeError(f"{type(form).__name__} is no form of a compilation")


@text.register
def _(graph: Graph) -> str:
    lines = [f"%{i.name} = {_input(i)} : {_meta(i.meta)}" for i in graph.inputs]
    lines += [f"%{n.name} = {_call(n)} : {', '.join(map(_meta, n.outputs))}" for n in graph.nodes]
    lines += [f"self.{m.buffer} = %{m.value}" for m in graph.mutations]
    return "\n".join([*lines, f"return {', '.join(f'%{name}' for name in graph.outputs)}"])


@text.register
def _(program: Program) -> str:
    lines = [_statement(statement) for statement in program.statements]
    results = (_operand(program.views.get(name, View(name, (), ()))) for name in program.graph.results)
    return "\n".join([*lines, f"return {', '.join(results)}"])


@text.register(tuple)
def _(units: tuple[Unit, ...]) -> str:
    lines: list[str] = []
    for unit in units:
        lines.append(_unit(unit))
        lines += [f"    {_statement(statement)}" for statement in statements_of(unit)]
    return "\n".join(lines)


@text.register(list)
def _(calls: list[Launch | HorizontalFusion | Attention | Library]) -> str:
    return "\n".join(line for number, call in enumerate(calls) for line in _launch(number, call))


def _input(item: Input) -> str:
    name = {"user": "argument ", "literal": "tensor "}.get(item.kind, "self.") + item.target
    return f"{name}.permute({', '.join(map(str, item.order))})" if item.order else name


def _call(node: Node) -> str:
    arguments = [_argument(a) for a in node.args] + [f"{k}={_argument(a)}" for k, a in node.kwargs.items()]
    return f"{node.op.removesuffix('.default')}({', '.join(arguments)})"


def _argument(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return f"%{arg.ref}"
    if isinstance(arg, DType):
        return arg.dtype
    return f"[{', '.join(map(_argument, arg))}]" if isinstance(arg, tuple) else repr(arg)


def _setting(value: object) -> str:
    return value.dtype if isinstance(value, DType) else repr(value)


def _meta(meta: Meta) -> str:
    strides = "" if meta.contiguous else f" strides {list(meta.strides)}"
    return f"{meta.dtype}{list(meta.shape)}{strides}"


def _operand(operand: Operand) -> str:
    if not isinstance(operand, View):
        return repr(operand.value)
    sizes = ", ".join(
        str(size) if size == 1 or stride == expected else f"{size}×{stride}"
        for size, stride, expected in zip(
            operand.shape, operand.strides, contiguous(operand.shape), strict=True
        )
    )
    rest = "".join(
        f" {word}{value}"
        for word, value in (("+", operand.offset), ("step +", operand.move), ("table +", operand.table))
        if value
    )
    return f"%{operand.base}[{sizes}]{rest}{' clipped' if operand.clips else ''}"


def _statement(statement: Statement) -> str:
    """One line; a recurrence has one for each statement of a step."""
    said = f"%{statement.name} = "
    read = lambda *operands: ", ".join(map(_operand, operands))  # noqa: E731
    match statement:
        case Library():
            return said + f"torch: {_call(statement.node)} : {', '.join(map(_meta, statement.node.outputs))}"
        case Compute():
            settings = "".join(f", {key}={_setting(value)}" for key, value in statement.settings.items())
            said += f"{statement.op}({read(*statement.operands)}{settings})"
            if statement.compute_dtype != statement.dtype:
                said += f" in {statement.compute_dtype}"
        case Reduce():
            index = () if statement.index is None else (statement.index,)
            said += f"reduce {statement.op}({read(statement.operand, *index)}, axes {list(statement.dims)})"
        case Scan():
            said += f"scan {statement.op}({read(statement.operand)}, axis {statement.dims[0]})"
        case Attention():
            masks = () if statement.mask is None else (statement.mask,)
            views = read(statement.query, statement.key, statement.value, *masks)
            said += f"attention({views}, scale={statement.scale:.6g}, causal={statement.causal})"
        case Joined():
            return said + f"joined from {', '.join(f'%{name}' for name in statement.pieces)}"
        case Recurrence():
            lines = [f"{said}{statement.steps} steps of"]
            lines += [f"    {_statement(part)}" for part in statement.body]
            lines += [f"    %{name} becomes %{source}" for name, source in statement.becomes.items()]
            return "\n".join(lines)
    return f"{said} : {statement.dtype}{list(statement.shape)}"


def _unit(unit: Unit) -> str:
    if isinstance(unit, Library):
        return "library call"
    if isinstance(unit, Attention):
        return "kernel of attention"
    space = unit.space
    steps = f", {unit.recurrence.steps} steps" if unit.recurrence is not None else ""
    axes = " × ".join(
        f"{high // low}{' (reduced)' if space.is_reduced((low, high)) else ''}" for low, high in space.axes
    )
    return f"kernel over {axes or '1'}{steps}"


def _launch(number: int, call: Launch | HorizontalFusion | Attention | Library) -> Iterator[str]:
    match call:
        case Library():
            yield f"{number}: torch: {_call(call.node)}"
        case Attention():
            yield f"{number}: attention %{call.name}"
        case HorizontalFusion():
            yield f"{number}: {len(call.launches)} kernels in one launch"
            for launch in call.launches:
                yield from (f"    {line}" for line in _calls(launch.calls))
        case Launch():
            first, *rest = _calls(call.calls)
            yield f"{number}: {first}"
            yield from rest


def _calls(calls: Sequence[RegionCall]) -> Iterator[str]:
    planned = calls[0].plan
    several = f", {len(calls)} calls in one launch" if len(calls) > 1 else ""
    writes = ", ".join(f"%{name}" for name in planned.outputs)
    reads = ", ".join(f"%{name}" for name in calls[0].reads)
    yield f"{_loops(planned)}: reads {reads or 'nothing'}, writes {writes}{several}"
    for count, stage in enumerate(planned.stages, start=1):
        if stage.row:
            yield f"    once a row: {_names(stage.row)}"
        if stage.has_pass:
            done = [
                f"{word} {_names(items)}"
                for word, items in (("compute", stage.elements), ("reduce to", stage.reductions))
                if items
            ]
            done += [
                f"{word} {', '.join(f'%{name}' for name in names)}"
                for word, names in (("store", stage.stores), ("keep", stage.keeps))
                if names
            ]
            yield f"    pass {count}: {'; '.join(done)}"
    if planned.scalars:
        yield f"    after all rows: {_names(planned.scalars)}"


def _loops(planned: Plan) -> str:
    return {
        "flat": f"{planned.row_length} elements in blocks",
        "rows": f"{planned.rows} rows of {planned.row_length}",
        "columns": f"{planned.rows} columns of {planned.row_length}, neighbours side by side",
        "tiles": f"{planned.region.space.numel} elements in tiles, whose axes change places",
    }[planned.mode]


def _names(statements: Sequence[Statement]) -> str:
    return ", ".join(f"%{statement.name}" for statement in statements)
