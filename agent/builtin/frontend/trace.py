"""Tracing of a task's source to a `Graph`, through `torch.export`.

Tracing runs the task's own code: call `trace_json` in a sandboxed process.
"""

import inspect
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from kernelwright.agent.builtin.frontend.decompose import table
from kernelwright.agent.builtin.frontend.export import export, meta_of, node_of, quoted
from kernelwright.agent.builtin.frontend.limits import limits_of
from kernelwright.agent.builtin.frontend.submodules import Leaving, SubmoduleCall
from kernelwright.agent.builtin.ir.graph import (
    SUBMODULE,
    Graph,
    Input,
    Kind,
    Meta,
    Mutation,
    Node,
    Ref,
    Structure,
)
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.evaluator.reference.loading import DTYPES
from kernelwright.kernelbench.evaluator.reference.task_format import constructor_inputs, for_device, inputs_of

LARGEST_LITERAL = 1024  # elements of a tensor written in the forward that a candidate may repeat


def trace_json(source: str, precision: str = "task") -> str:
    return trace_source(source, precision).to_json()


def trace_source(source: str, precision: str = "task") -> Graph:
    """Return the graph of `Model(*get_init_inputs())` in train mode on `get_inputs()`.

    Raises `Untraceable` with the reason where the coder has to fall back to the reference.
    """
    build, model, init, inputs = _called(source, precision)
    arguments = _arguments(model, inputs)
    fixed = {n: repr(x) for n, x in zip(arguments, inputs, strict=True) if not isinstance(x, Tensor)}
    constructor = _constructor(init)
    leaving = Leaving(build)
    try:
        exported = export(model, inputs, {}, table())
    except Untraceable as error:
        model = build()  # what failed may have left its traces
        try:
            exported = leaving.search(_kinds(inputs), str(error))
        except Untraceable as reason:
            parts = leaving.parts(_kinds(inputs), str(reason))
            graphs = {path: _part(model, path, *found, leaving) for path, found in parts.items()}
            return _left(str(reason), arguments, constructor, graphs)
    return _as_inputs_lie(_convert(exported, model, arguments, fixed, constructor, leaving))


def limits_json(source: str, precision: str, free: Mapping[str, Mapping[str, str]]) -> str:
    """Return the limits of free sizes, within which forward does what it does on `get_inputs()`.

    `free` names them, by argument and axis. Raises `Untraceable` where forward does otherwise for sizes that
    are no range.
    """
    _, model, _, inputs = _called(source, precision)
    axes = {name: {int(axis): size for axis, size in sizes.items()} for name, sizes in free.items()}
    return json.dumps(limits_of(model, inputs, _arguments(model, inputs), axes))


def _called(source: str, precision: str) -> tuple[Callable[[], nn.Module], nn.Module, Any, list[Any]]:
    """Return what makes the model of a task, a model, what it is made with, and what forward takes."""
    module: dict[str, Any] = {"__name__": "reference"}
    exec(compile(for_device(source, torch.device("cpu")), "reference.py", "exec"), module)
    torch.manual_seed(0)
    init = constructor_inputs(module["get_init_inputs"](), module["Model"])
    dtype = DTYPES[precision]

    def build() -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = module["Model"](*init)
        return model if dtype is None else model.to(dtype)

    model = build()
    inputs = inputs_of(module["get_inputs"](), model)
    if dtype is not None:
        inputs = [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    return build, model, init, inputs


def _part(
    model: nn.Module, path: str, call: SubmoduleCall, exported: ExportedProgram, leaving: Leaving
) -> Graph:
    """Return the graph of a submodule, from its own arguments and parameters."""
    part = model.get_submodule(path)
    args, _ = call.arguments()
    arguments = _arguments(part, args)
    fixed = {n: repr(x) for n, x in zip(arguments, args, strict=True) if not isinstance(x, Tensor)}
    return _convert(exported, part, arguments, fixed, (), leaving)


def _left(
    reason: str, arguments: tuple[str, ...], constructor: tuple[str, ...], parts: dict[str, Graph]
) -> Graph:
    """Graph of a reference whose forward stays as it is."""
    return Graph(
        arguments=arguments,
        fixed={},
        constructor=constructor,
        inputs=(),
        nodes=(),
        mutations=(),
        outputs=(),
        structure="tensor",
        left={"": reason},
        parts=parts,
    )


def _kinds(inputs: list[Any]) -> list[list[Any]]:
    """Return the inputs, their negatives and zeros: a branch on data is likely to be taken both ways."""
    tensors = [isinstance(x, Tensor) and x.is_floating_point() for x in inputs]
    return [
        [x * factor if is_tensor else x for x, is_tensor in zip(inputs, tensors, strict=True)]
        for factor in (1, -1, 0)
    ]


def _arguments(model: nn.Module, inputs: list[Any]) -> tuple[str, ...]:
    parameters = list(inspect.signature(model.forward).parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise Untraceable("forward takes a variable number of arguments")
    if not all(isinstance(x, Tensor | int | float | bool | str | None) for x in inputs):
        raise Untraceable("forward takes an argument that is neither a tensor nor a number")
    return tuple(p.name for p in parameters[: len(inputs)])


def _constructor(init: Any) -> tuple[str, ...]:
    if not isinstance(init, list | tuple) or not all(is_literal(value) for value in init):
        raise Untraceable("get_init_inputs() holds something other than literals")
    return tuple(repr(value) for value in init)


def is_literal(value: Any) -> bool:
    """Return True for what Python can write as it is: numbers, text, None, lists and tuples of these."""
    if isinstance(value, list | tuple):
        return all(is_literal(item) for item in value)
    return isinstance(value, bool | int | float | str | None)


def _convert(
    exported: ExportedProgram,
    model: nn.Module,
    arguments: tuple[str, ...],
    fixed: dict[str, str],
    constructor: tuple[str, ...],
    leaving: Leaving,
) -> Graph:
    signature = exported.graph_signature
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    users = iter(arguments)
    targets = {
        spec.arg.name: next(users) for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT
    }
    inputs: list[Input] = []
    nodes: list[Node] = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            if not isinstance(node.meta.get("val"), Tensor):
                continue  # a number: export has specialised on it
            inputs.append(_input(node, specs[node.name], targets.get(node.name, ""), exported, model))
        elif node.op == "call_function":
            nodes.append(leaving.spelled_out(node_of(node)))
    mutations, outputs = [], []
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            mutations.append(Mutation(buffer=quoted(spec.target, model), value=spec.arg.name))
        elif spec.kind == OutputKind.USER_OUTPUT and hasattr(spec.arg, "name"):
            outputs.append(spec.arg.name)
        else:
            raise Untraceable(f"forward has an effect other than its result: {spec.kind.name}")
    known = {i.name for i in inputs} | {n.name for n in nodes}
    if not set(outputs) <= known:
        raise Untraceable("forward returns something other than tensors")
    kinds: dict[Any, Structure] = {list: "list", tuple: "tuple", None: "tensor"}
    structure = kinds.get(exported.call_spec.out_spec.type)
    if structure is None or (structure == "tensor" and len(outputs) != 1):
        raise Untraceable("forward returns neither a tensor nor a flat tuple or list of tensors")
    if any(not child.is_leaf() for child in exported.call_spec.out_spec.children()):
        raise Untraceable("forward returns a nested structure")
    return Graph(
        arguments=arguments,
        fixed=fixed,
        constructor=constructor,
        inputs=tuple(inputs),
        nodes=_live(nodes, [*outputs, *(m.value for m in mutations)]),
        mutations=tuple(mutations),
        outputs=tuple(outputs),
        structure=structure,
        left=leaving.left,
        parts={},
    )


def _as_inputs_lie(graph: Graph) -> Graph:
    """Return the graph with inputs in the order of axes in which they lie in memory.

    An input of [4, 8, 128, 64] that is a transposed [4, 128, 8, 64] becomes that one, and a view of it.
    """
    inputs: list[Input] = []
    views: list[Node] = []
    for item in graph.inputs:
        order = _order(item.meta) if item.kind == "user" else ()
        if not order:
            inputs.append(item)
            continue
        lying = Meta(
            shape=tuple(item.meta.shape[axis] for axis in order),
            dtype=item.meta.dtype,
            strides=tuple(item.meta.strides[axis] for axis in order),
        )
        name = f"{item.name}_in_memory"
        back = tuple(order.index(axis) for axis in range(len(order)))
        inputs.append(item.model_copy(update={"name": name, "meta": lying, "order": order}))
        args = (Ref(ref=name), back)
        views.append(
            Node(name=item.name, op="aten.permute.default", args=args, kwargs={}, outputs=(item.meta,))
        )
    return graph.model_copy(update={"inputs": tuple(inputs), "nodes": (*views, *graph.nodes)})


def _order(meta: Meta) -> tuple[int, ...]:
    """Return the order of axes in which a dense tensor lies in memory; () if that is the usual one.

    Axes of one element have a place in it, too, so that it is the same order for longer ones.
    """
    order = tuple(sorted(range(len(meta.shape)), key=lambda axis: -meta.strides[axis]))
    expected = 1
    for axis in reversed(order):
        if meta.shape[axis] != 1 and meta.strides[axis] != expected:
            return ()
        expected *= meta.shape[axis]
    return () if order == tuple(range(len(order))) else order


def _input(node: Any, spec: Any, argument: str, exported: Any, model: nn.Module) -> Input:
    meta = meta_of(node.meta["val"])
    kinds: dict[InputKind, Kind] = {
        InputKind.USER_INPUT: "user",
        InputKind.PARAMETER: "parameter",
        InputKind.BUFFER: "buffer",
    }
    if spec.kind in kinds:
        target = quoted(spec.target, model) if spec.target else argument
        return Input(name=node.name, kind=kinds[spec.kind], target=target, meta=meta)
    if spec.kind != InputKind.CONSTANT_TENSOR:
        raise Untraceable(f"the graph starts from a {spec.kind.name}")
    try:
        operator.attrgetter(spec.target)(model)
    except AttributeError:
        value = exported.constants[spec.target]
        if value.numel() > LARGEST_LITERAL:
            raise Untraceable(f"forward holds a tensor of {value.numel()} constants") from None
        values = tuple(float(v) for v in value.flatten().tolist())
        return Input(name=node.name, kind="literal", target=spec.target, meta=meta, values=values)
    return Input(name=node.name, kind="constant", target=quoted(spec.target, model), meta=meta)


def _live(nodes: list[Node], wanted: list[str]) -> tuple[Node, ...]:
    """Return the nodes that `wanted` depends on, and submodules, which may do more than to give a result."""
    needed = {*wanted, *(n.name for n in nodes if n.op == SUBMODULE)}
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return tuple(n for n in nodes if n.name in needed)
