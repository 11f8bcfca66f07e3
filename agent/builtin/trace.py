"""From the source of a task to a `Graph`, through `torch.export`.

Tracing runs the task's own code: call `trace_json` in a sandboxed process.
"""

import inspect
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind

from agent.builtin.decompose import table
from agent.builtin.graph import Arg, DType, Graph, Input, Kind, Meta, Mutation, Node, Ref, Structure
from agent.builtin.untraceable import Untraceable

_PLACEMENT = {"device", "layout", "pin_memory", "memory_format"}  # arguments that change no value
LARGEST_LITERAL = 1024  # elements of a tensor written in the forward that a candidate may repeat

RANDOM = {"bernoulli", "native_dropout", "rand", "randn", "randint", "randperm", "rand_like", "randn_like"}
RANDOM |= {"randint_like", "normal", "normal_functional", "multinomial", "uniform", "exponential", "poisson"}


def trace_json(source: str, precision: str = "fp32") -> str:
    return trace_source(source, precision).to_json()


def trace_source(source: str, precision: str = "fp32") -> Graph:
    """The graph of `Model(*get_init_inputs())` in train mode on `get_inputs()`.

    Raises `Untraceable` with the reason where the coder has to fall back to the reference.
    """
    module: dict[str, Any] = {"__name__": "reference"}
    exec(compile(source, "reference.py", "exec"), module)
    torch.manual_seed(0)
    init = module["get_init_inputs"]()
    model: nn.Module = module["Model"](*init)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    inputs = list(module["get_inputs"]())
    if dtype is not None:
        model = model.to(dtype)
        inputs = [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    arguments = _arguments(model, inputs)
    fixed = {n: repr(x) for n, x in zip(arguments, inputs, strict=True) if not isinstance(x, Tensor)}
    constructor = _constructor(init)
    try:
        with torch.no_grad():
            exported = torch.export.export(model, tuple(inputs), strict=False)
            exported = exported.run_decompositions(table())
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Untraceable(f"torch.export: {reason}") from error
    return _convert(exported, model, arguments, fixed, constructor)


def _arguments(model: nn.Module, inputs: list[Any]) -> tuple[str, ...]:
    parameters = list(inspect.signature(model.forward).parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise Untraceable("forward takes a variable number of arguments")
    if not all(isinstance(x, Tensor | int | float | bool | str | None) for x in inputs):
        raise Untraceable("forward takes an argument that is neither a tensor nor a number")
    return tuple(p.name for p in parameters[: len(inputs)])


def _constructor(init: Any) -> tuple[str, ...]:
    if not isinstance(init, list | tuple) or not all(_is_literal(value) for value in init):
        raise Untraceable("get_init_inputs() holds something other than literals")
    return tuple(repr(value) for value in init)


def _is_literal(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_literal(item) for item in value)
    return isinstance(value, bool | int | float | str | None)


def _convert(
    exported: Any,
    model: nn.Module,
    arguments: tuple[str, ...],
    fixed: dict[str, str],
    constructor: tuple[str, ...],
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
            nodes.append(_node(node))
        elif node.op != "output":
            raise Untraceable(f"the graph holds a {node.op} node, {node.name}")
    mutations, outputs = [], []
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            mutations.append(Mutation(buffer=spec.target, value=spec.arg.name))
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
    )


def _input(node: Any, spec: Any, argument: str, exported: Any, model: nn.Module) -> Input:
    meta = _meta(node.meta["val"])
    kinds: dict[InputKind, Kind] = {
        InputKind.USER_INPUT: "user",
        InputKind.PARAMETER: "parameter",
        InputKind.BUFFER: "buffer",
    }
    if spec.kind in kinds:
        return Input(name=node.name, kind=kinds[spec.kind], target=spec.target or argument, meta=meta)
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
    return Input(name=node.name, kind="constant", target=spec.target, meta=meta)


def _node(node: Any) -> Node:
    if node.target is operator.getitem:
        op = "getitem"
    elif isinstance(node.target, torch._ops.OpOverload):
        op = str(node.target)
        if node.target._opname in RANDOM:
            raise Untraceable(f"forward draws random numbers ({op})")
    else:
        raise Untraceable(f"the graph calls {node.target}")
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(v, Tensor) or v is None for v in values):
        raise Untraceable(f"{op} returns something other than tensors")
    return Node(
        name=node.name,
        op=op,
        args=tuple(_arg(a) for a in node.args),
        kwargs={k: _arg(a) for k, a in node.kwargs.items() if k not in _PLACEMENT},
        outputs=tuple(_meta(v) for v in values if v is not None),
    )


def _arg(value: Any) -> Arg:
    if isinstance(value, torch.fx.Node):
        if not isinstance(value.meta.get("val"), Tensor | list | tuple):
            raise Untraceable("a size depends on the data")
        return Ref(ref=value.name)
    if isinstance(value, torch.dtype):
        return DType(dtype=str(value).removeprefix("torch."))
    if isinstance(value, list | tuple):
        return tuple(_arg(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return str(value)
    raise Untraceable(f"an operation takes a {type(value).__name__}")


def _meta(value: Tensor) -> Meta:
    if not all(isinstance(size, int) for size in value.shape):
        raise Untraceable("a shape depends on the data")
    return Meta(
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        strides=tuple(value.stride()),
    )


def _live(nodes: list[Node], wanted: list[str]) -> tuple[Node, ...]:
    """The nodes that `wanted` depends on."""
    needed = set(wanted)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return tuple(n for n in nodes if n.name in needed)
