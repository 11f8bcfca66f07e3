"""`torch.export` of a module, and one operation of its graph as a `Node`."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from kernelwright.agent.builtin.ir.graph import Arg, DType, Meta, Node, Ref
from kernelwright.agent.builtin.ir.untraceable import Untraceable

_PLACEMENT = {"device", "layout", "pin_memory", "memory_format"}  # arguments that change no value

_RANDOM = """
bernoulli native_dropout rand randn randint randperm rand_like randn_like randint_like normal
normal_functional multinomial uniform exponential poisson
"""
RANDOM = frozenset(_RANDOM.split())


def export(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], decompositions: Mapping[Any, Any]
) -> ExportedProgram:
    """Return the functional program of a call. Raises Untraceable where a candidate could not repeat it."""
    try:
        with torch.no_grad():
            exported = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
            exported = exported.run_decompositions(dict(decompositions))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = reason.partition(" (unhinted")[0]  # which says the same of a guard on data again
        raise Untraceable(f"torch.export: {reason}") from error
    for node in exported.graph.nodes:
        if node.op == "call_function":
            node_of(node)
        elif node.op not in ("placeholder", "output"):
            raise Untraceable(f"the graph holds a {node.op} node, {node.name}")
    return exported


def quoted(dotted: str, model: nn.Module) -> str:
    """Return the name of a parameter, buffer or submodule, keys in quotes: "heads.'0'.weight"."""
    parts: list[str] = []
    owner: Any = model
    for part in filter(None, dotted.split(".")):
        parts.append(repr(part) if isinstance(owner, nn.ModuleDict | nn.ParameterDict) else part)
        owner = getattr(owner, part)
    return ".".join(parts)


def node_of(node: Any) -> Node:
    """Return the `Node` of a call_function node. Raises Untraceable if a candidate could not repeat it."""
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
        outputs=tuple(meta_of(v) for v in values if v is not None),
    )


def meta_of(value: Tensor) -> Meta:
    if value.layout != torch.strided:
        raise Untraceable(f"a tensor is {str(value.layout).removeprefix('torch.')}")
    if not all(isinstance(size, int) for size in value.shape):
        raise Untraceable("a shape depends on the data")
    return Meta(
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        strides=tuple(value.stride()),
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
