"""A module or function, run once on example inputs, as the straight list of torch calls that it makes.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.errors import UsageError

_CONSTANTS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
SEED = 0  # of the call whose outputs are kept
_calls = itertools.count()


@dataclass(frozen=True)
class CallForm:
    """Form of a call's arguments, or of its result: where tensors are, and all that is no tensor."""

    spec: Any  # of pytree
    constants: tuple[Any, ...]  # None in the places of tensors
    is_tensor: tuple[bool, ...]

    @classmethod
    def of(cls, value: Any) -> "tuple[CallForm, list[Tensor]]":
        leaves, spec = pytree.tree_flatten(value)
        is_tensor = tuple(isinstance(leaf, Tensor) for leaf in leaves)
        constants = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, constants, is_tensor), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return a value of this form with these tensors."""
        rest = iter(tensors)
        leaves = [
            next(rest) if wanted else constant
            for wanted, constant in zip(self.is_tensor, self.constants, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)

    def tensors_of(self, value: Any) -> list[Tensor] | None:
        """Return the tensors of a value; None where its form, or what is no tensor in it, is another."""
        form, tensors = CallForm.of(value)
        return tensors if form == self else None


@dataclass(frozen=True)
class Traced:
    """One call of a module or function."""

    title: str  # "RMSNorm of layers.norm"
    function: Callable[..., Any]
    graph: torch.fx.Graph  # placeholders are the inputs, get_attr the weights
    arguments: CallForm  # of (args, kwargs)
    results: CallForm
    inputs: dict[str, Tensor]  # by the names that forward has for them
    weights: dict[str, Tensor]  # parameters, buffers and other tensors that are read, by their path
    outputs: list[Tensor]

    @property
    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None


def traced(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Traced:
    """Trace a call. Raises UsageError where it fails, or does what no task can do."""
    function = getattr(function, "_orig_mod", function)  # of torch.compile
    title = name_of(function)
    _check(function, title)
    arguments, given = CallForm.of((tuple(args), dict(kwargs or {})))
    _check_constants(
        arguments, f"an input of {title}", "pass tensors, numbers and strings, or containers of them"
    )
    if not given:
        raise UsageError(
            f"{title} has no example input that is a tensor", "pass its inputs: a tensor at least"
        )
    _check_places(function, title, given)
    inputs = [each.detach().clone(memory_format=torch.preserve_format) for each in given]
    with _as_it_was(function), torch.no_grad(), torch.random.fork_rng(devices=_gpus(given)):
        called_args, called_kwargs = arguments.filled([each.clone() for each in inputs])
        torch.manual_seed(SEED)
        try:
            made = function(*called_args, **called_kwargs)
        except Exception as error:
            raise UsageError(
                f"{title} fails with these inputs: {said(error)}", _fix(error, function)
            ) from error
        results, outputs = CallForm.of(made)
        outputs = [each.clone() for each in outputs]
        _check_constants(
            results, f"an output of {title}", "return tensors, numbers and strings, or containers of them"
        )
        if not outputs:
            raise UsageError(f"{title} returns no tensor", "return what it computes")
        graph, weights = _graph(function, title, arguments, inputs)
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    inputs_by_name = dict(zip(names, inputs, strict=True))
    return Traced(title, function, graph, arguments, results, inputs_by_name, weights, outputs)


def name_of(function: Any) -> str:
    """Return the name of a module or function, with that of the Python module that defines it."""
    kind = type(function) if isinstance(function, nn.Module) else function
    name = getattr(kind, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    name = name.removeprefix("_VariableFunctionsClass.")  # of torch's own
    name = "a lambda" if name.endswith("<lambda>") else name
    where = getattr(kind, "__module__", "") or ""
    return name if where in ("", "__main__", "builtins") else f"{name} of {where}"


def said(error: BaseException) -> str:
    """Return the kind and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _check(function: Any, title: str) -> None:
    if isinstance(function, type):
        raise UsageError(f"{title} is a class", f"pass an instance, such as {function.__name__}(…)")
    if not callable(function):
        raise UsageError(
            f"a {type(function).__name__} is neither a module nor a function", "pass an nn.Module"
        )
    if isinstance(function, torch.jit.ScriptModule):
        raise UsageError(f"{title} is a TorchScript module", "pass the module that it was scripted from")
    if isinstance(function, nn.Module):
        held = itertools.chain(function.named_parameters(), function.named_buffers())
        for name, tensor in held:
            if nn.parameter.is_lazy(tensor):
                raise UsageError(f"{name} of {title} has no size yet", "call the module once on real inputs")
            if tensor.is_meta:
                raise UsageError(
                    f"{name} of {title} is on the meta device",
                    "give it memory and weights: module.to_empty(device=…)",
                )


def _check_constants(form: CallForm, what: str, fix: str) -> None:
    for constant in form.constants:
        if not isinstance(constant, _CONSTANTS):
            raise UsageError(f"{what} is a {type(constant).__name__}", fix)


def _check_places(function: Any, title: str, inputs: Sequence[Tensor]) -> None:
    held = (
        itertools.chain(function.parameters(), function.buffers()) if isinstance(function, nn.Module) else ()
    )
    places = {tensor.device for tensor in held}
    for place, tensor in enumerate(inputs):
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            kind = type(tensor).__name__ if tensor.layout is torch.strided else str(tensor.layout)
            raise UsageError(f"input {place} of {title} is a {kind}", "pass a plain, dense tensor")
        if tensor.is_meta:
            raise UsageError(f"input {place} of {title} is on the meta device", "pass one with numbers")
        if places and tensor.dim() and tensor.device not in places:
            where = " and ".join(sorted(map(str, places)))
            raise UsageError(
                f"input {place} of {title} is on {tensor.device}, the module on {where}",
                f"move one of them: input.to({sorted(map(str, places))[0]!r})",
            )


def _fix(error: BaseException, function: Any) -> str:
    if isinstance(error, TypeError) and "argument" in str(error):
        return "pass its arguments as you call it; those by name in example_kwargs (--input NAME=…)"
    if "dtype" in str(error):
        return "give the inputs the dtype of the weights"
    return "call it by hand with the same inputs first"


def _gpus(tensors: Sequence[Tensor]) -> list[int]:
    return sorted({each.device.index or 0 for each in tensors if each.device.type == "cuda"})


class _Untraceable(Exception):  # noqa: N818 - what it is
    """A call that this way of tracing cannot follow."""


def _graph(
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
            reason = said(first).removeprefix("_Untraceable: ")
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
    return _graph_of(module.graph, values, names, own, paths)


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
    return _graph_of(exported.graph, values, names, own, paths)


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


def _graph_of(
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


@contextmanager
def _as_it_was(function: Any) -> Iterator[None]:
    """Give the buffers of a module their numbers back: running statistics, say."""
    buffers = list(function.buffers()) if isinstance(function, nn.Module) else []
    before = [(buffer, buffer._version, buffer.clone()) for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, version, value in before:
                if buffer._version != version:
                    buffer.copy_(value)


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
