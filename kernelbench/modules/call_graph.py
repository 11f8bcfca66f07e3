"""The torch calls that a function makes, as a graph whose other tensors have the names of a module's.

TorchDynamo reads the calls off the Python code as it runs: `torch.nn.functional.silu(x)` stays what it is,
Python's own control flow and constants are gone. So a call costs what it costs in the module itself, or a
little less, and nothing depends on where the module was defined. What TorchDynamo cannot follow,
`torch.export` traces, whose calls are ATen's.
"""

import inspect
import itertools
import logging
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.call_form import CallForm

_calls = itertools.count()
_ON_DATA = re.compile("data.dependent", re.IGNORECASE)  # in what TorchDynamo says of a number of a tensor
_BRANCHES = "what it computes depends on numbers in tensors"


def said(error: BaseException) -> str:
    """Return the kind and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class _Untraceable(Exception):  # noqa: N818 - what it is
    """A call that this way of tracing cannot follow."""


def call_graph(
    function: Any, title: str, arguments: CallForm, inputs: Sequence[Tensor]
) -> tuple[torch.fx.Graph, dict[str, Tensor]]:
    """Return the graph of the call, and the tensors that its get_attr stand for."""
    names, paths = _names(function, arguments), _paths(function)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the reasons why one of them cannot follow it
    try:
        return _by_dynamo(_flat(function, arguments), names, inputs, paths)
    except Exception as first:
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # it prints what it could not do
                return _by_export(_Flat(function, arguments), names, inputs, paths)
        except Exception:  # noqa: BLE001
            on_data = _ON_DATA.search(str(first)) is not None
            reason = _BRANCHES if on_data else said(first).removeprefix("_Untraceable: ")
        raise UsageError(
            f"{title} cannot be traced: {reason}",
            "pass the part of it that computes without branches on numbers, or write a task file",
        ) from first
    finally:
        logging.disable(disabled)


def _by_dynamo(
    flat: FunctionType, names: Sequence[str], inputs: Sequence[Tensor], paths: Mapping[int, str]
) -> tuple[torch.fx.Graph, dict[str, Tensor]]:
    captured: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def keep(module: torch.fx.GraphModule, given: list[Any]) -> Callable[..., Any]:
        captured.append((module, list(given)))
        return module.forward

    own = [each.clone() for each in inputs]
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(flat, backend=keep, fullgraph=True, dynamic=False)(*own)
    if not captured:
        raise _Untraceable("it computes nothing with torch")
    ((module, given),) = captured
    values = dict(zip(module.graph.find_nodes(op="placeholder"), given, strict=True))
    for node in module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(module)
        if not isinstance(value, Tensor):
            raise _Untraceable(f"it has a graph of its own for {node.target}")
        values[node] = value
    return _assembled(module.graph, values, names, own, paths)


def _by_export(
    flat: nn.Module, names: Sequence[str], inputs: Sequence[Tensor], paths: Mapping[int, str]
) -> tuple[torch.fx.Graph, dict[str, Tensor]]:
    own = [each.clone() for each in inputs]
    exported = torch.export.export(flat, tuple(own), strict=False)
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in exported.graph_signature.output_specs):
        raise _Untraceable("it has an effect other than its result")
    held = {**exported.state_dict, **exported.constants}
    given = iter(own)
    values = {}
    for node, spec in zip(
        exported.graph.find_nodes(op="placeholder"), exported.graph_signature.input_specs, strict=True
    ):
        values[node] = next(given) if spec.kind is InputKind.USER_INPUT else held[spec.target]
    return _assembled(exported.graph, values, names, own, paths)


def _flat(function: Any, arguments: CallForm) -> FunctionType:
    """Return a function of the input tensors alone, which returns the tensors of the result.

    Its code object is its own, since TorchDynamo keeps a limited number of compilations of one.
    """

    def call(*tensors: Tensor) -> list[Tensor]:
        args, kwargs = arguments.filled(tensors)
        return [leaf for leaf in pytree.tree_leaves(function(*args, **kwargs)) if isinstance(leaf, Tensor)]

    code = call.__code__.replace(co_name=f"call_{next(_calls)}")
    return FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


class _Flat(nn.Module):
    """The same as a module, for torch.export."""

    def __init__(self, function: Any, arguments: CallForm) -> None:
        super().__init__()
        self.function = function
        self.flat = _flat(function, arguments)

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        return self.flat(*tensors)


def _paths(function: Any) -> dict[int, str]:
    """Return names of tensors by identity: parameters, buffers, plain attributes, and those of a closure."""
    if not isinstance(function, nn.Module):
        try:
            outer = inspect.getclosurevars(function)
        except TypeError:  # it is a builtin, or a partial
            return {}
        seen = {**outer.globals, **outer.nonlocals}
        return {id(value): name for name, value in seen.items() if isinstance(value, Tensor)}
    held = [*function.named_parameters(), *function.named_buffers()]
    for path, module in function.named_modules():
        plain = ((name, value) for name, value in vars(module).items() if isinstance(value, Tensor))
        held += [(f"{path}.{name}" if path else name, value) for name, value in plain]
    return {id(tensor): path for path, tensor in reversed(held)}


def _assembled(
    found: torch.fx.Graph,
    values: Mapping[torch.fx.Node, Any],
    names: Sequence[str],
    inputs: Sequence[Tensor],
    paths: Mapping[int, str],
) -> tuple[torch.fx.Graph, dict[str, Tensor]]:
    """Return a graph whose placeholders are the inputs, and whose get_attr are all other `values`."""
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    mine = {id(tensor): graph.placeholder(name) for name, tensor in zip(names, inputs, strict=True)}
    for placeholder in mine.values():
        placeholder.target = placeholder.name  # which is another where the argument is called "input", say
    weights: dict[str, Tensor] = {}
    for node in found.nodes:
        if node in values:
            value = values[node]
            if not isinstance(value, Tensor):
                raise _Untraceable(f"a {type(value).__name__} of it changes from call to call")
            if id(value) in mine:
                known[node] = mine[id(value)]
            elif node.users:
                path = paths.get(id(value)) or _free(node.name, {*weights, *paths.values()})
                weights[path] = value
                known[node] = graph.create_node("get_attr", path)
        elif node.op == "output":
            results = torch.fx.map_arg(node.args[0], known.__getitem__)
            for result in results:
                if re.match("leaf|child", result.name):  # pytree's words
                    result._rename("output")
            graph.output(tuple(results) if len(results) > 1 else results[0])
        elif node.target is not torch._C._log_api_usage_once:
            known[node] = graph.node_copy(node, known.__getitem__)
    _place_where_inputs_are(graph, inputs[0].device)
    return graph, weights


def _free(name: str, taken: Collection[str]) -> str:
    """Return a name for a tensor that is no part of the module: "G_scale_" is a global's, scale."""
    plain = re.sub(r"^[gl]_(.*?)_*$", r"\1", name, flags=re.IGNORECASE)
    plain = re.sub(r"^.*closure_\d+_cell_contents$", "captured", plain)
    free = (plain if not count else f"{plain}_{count}" for count in itertools.count())
    return next(each for each in free if each not in taken)


def _place_where_inputs_are(graph: torch.fx.Graph, device: torch.device) -> None:
    """Replace the device of the inputs, where the graph makes tensors, by that of the first input."""
    first = graph.find_nodes(op="placeholder")[0]
    makes = [
        n for n in graph.nodes if n.op.startswith("call") and device in pytree.tree_leaves((n.args, n.kwargs))
    ]
    if not makes:
        return
    with graph.inserting_before(makes[0]):
        place = graph.create_node("call_function", getattr, (first, "device"), name="where")
    for node in makes:
        node.args, node.kwargs = pytree.tree_map_only(
            torch.device, lambda d: place if d == device else d, (node.args, node.kwargs)
        )


def _names(function: Any, arguments: CallForm) -> list[str]:
    """Return a name for each input tensor: that of forward's argument, and the keys of what it is held in."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a builtin
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "x")
    whole = pytree.tree_unflatten(list(range(len(arguments.is_tensor))), arguments.spec)
    names = []
    for (_, place, *keys), leaf in pytree.tree_leaves_with_path(whole):
        if not arguments.is_tensor[leaf]:
            continue
        key = _key(place)
        if isinstance(key, int):
            key = positional[key] if key < len(positional) else f"{rest}_{key - len(positional)}"
        names.append(re.sub(r"\W", "_", "_".join(map(str, (key, *map(_key, keys))))))
    return names


def _key(key: Any) -> Any:
    return next(getattr(key, name) for name in ("idx", "key", "name") if hasattr(key, name))
