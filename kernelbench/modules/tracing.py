"""A module or function, run once on example inputs, with the torch calls that it makes."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.call_form import CallForm
from kernelwright.kernelbench.modules.call_graph import call_graph, said

SEED = 0  # of the call whose outputs are kept
_CONSTANTS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))


@dataclass(frozen=True)
class TracedCall:
    """One call of a module or function."""

    name: str  # of the class or function: "RMSNorm"
    origin: str  # the Python module that defines it; "" for __main__
    function: Callable[..., Any]
    graph: torch.fx.Graph  # placeholders are the inputs, get_attr the weights
    arguments: CallForm  # of (args, kwargs)
    results: CallForm
    inputs: dict[str, Tensor]  # by the names that forward has for them
    weights: dict[str, Tensor]  # parameters, buffers and other tensors that are read, by their path
    outputs: list[Tensor]
    writes: tuple[str, ...] = ()  # names of inputs and buffers that the call changes

    @property
    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None


def trace_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> TracedCall:
    """Trace a call. Raises UsageError where it fails, or does what no task can do."""
    function = getattr(function, "_orig_mod", function)  # of torch.compile
    name = _name(function)
    _check(function, name)
    arguments, given = CallForm.of((tuple(args), dict(kwargs or {})))
    _check_constants(
        arguments, f"an input of {name}", "pass tensors, numbers and strings, or containers of them"
    )
    if not given:
        raise UsageError(
            f"{name} has no example input that is a tensor", "pass its inputs: a tensor at least"
        )
    _check_places(function, name, given)
    inputs = [each.detach().clone(memory_format=torch.preserve_format) for each in given]
    with _as_it_was(function) as written, torch.no_grad(), torch.random.fork_rng(devices=_gpus(given)):
        own = [each.clone() for each in inputs]
        called_args, called_kwargs = arguments.filled(own)
        torch.manual_seed(SEED)
        try:
            made = function(*called_args, **called_kwargs)
        except Exception as error:
            raise UsageError(
                f"{name} fails with these inputs: {said(error)}", _fix(error, function)
            ) from error
        results, outputs = CallForm.of(made)
        outputs = [each.clone() for each in outputs]
        _check_constants(
            results, f"an output of {name}", "return tensors, numbers and strings, or containers of them"
        )
        if not outputs:
            raise UsageError(f"{name} returns no tensor", "return what it computes")
        graph, weights = call_graph(function, name, arguments, inputs)
    inputs_named = [node.name for node in graph.nodes if node.op == "placeholder"]
    written += [n for n, before, now in zip(inputs_named, inputs, own, strict=True) if not _same(before, now)]
    return TracedCall(
        name=name,
        origin=_origin(function),
        function=function,
        graph=graph,
        arguments=arguments,
        results=results,
        inputs=dict(zip(inputs_named, inputs, strict=True)),
        weights=weights,
        outputs=outputs,
        writes=tuple(written),
    )


def _name(function: Any) -> str:
    """Return the name of a module's class, or of a function."""
    kind = type(function) if isinstance(function, nn.Module) else function
    name = getattr(kind, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    name = name.removeprefix("_VariableFunctionsClass.")  # of torch's own
    return "a lambda" if name.endswith("<lambda>") else name


def _origin(function: Any) -> str:
    """Return the Python module that defines it; "" where it cannot be imported from there."""
    kind = type(function) if isinstance(function, nn.Module) else function
    where = getattr(kind, "__module__", "") or ""
    return "" if where in ("__main__", "builtins") else where


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


@contextmanager
def _as_it_was(function: Any) -> Iterator[list[str]]:
    """Give the buffers of a module their numbers back, running statistics say; yield the names of those.

    Attributes get their values back, too: TorchDynamo may replace a dict by an equal one.
    """
    modules = list(function.modules()) if isinstance(function, nn.Module) else []
    attributes = [dict(vars(module)) for module in modules]
    buffers = dict(function.named_buffers()) if isinstance(function, nn.Module) else {}
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for module, values in zip(modules, attributes, strict=True):
            for name in vars(module).keys() - values:
                del vars(module)[name]
            vars(module).update(values)
        with torch.no_grad():
            for name, buffer in buffers.items():
                if not _same(buffer, before[name]):
                    buffer.copy_(before[name])
                    changed.append(name)


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())
