"""Puts kernels into a model and takes them out again, and says what was replaced, what not, and why."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn

from .kernel import Kernel
from .parts import STOCK, Parts, hooked, stock_class
from .state import verified

__all__ = ["STOCK", "apply", "computed", "fitting", "put", "remember", "remove", "stock", "why_not"]

NONE: Mapping[str, Any] = {}
_MARK = "_kernelwright_drop_in"  # on a layer: which package computes it, by which kernels
_PARTS = "_kernelwright_parts"  # on a layer: what it was then


class DropInError(Exception):
    """A drop-in that cannot be put in; the message says why."""


class NothingReplacedError(DropInError):
    """A mapping that replaces nothing."""


class ConflictError(DropInError):
    """A layer that another package computes already."""


@dataclass
class Report:
    """Layers by their name in the model."""

    replaced: dict[str, str] = field(default_factory=dict)  # -> the kernels that compute them
    left: dict[str, str] = field(default_factory=dict)  # of the same class, not replaced -> why

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.left)} left"]
        lines += [f"  {name}: {kernels}" for name, kernels in self.replaced.items()]
        lines += [f"  {name} is left: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def apply(model: nn.Module, kernels: Sequence[Kernel], package: str) -> Report:
    """Have each layer that a kernel stands in for call it, where the call is inside the kernel's envelope.

    A layer is replaced where its class, the names, shapes and dtypes of its parameters, and what it computes
    on numbers by chance, in training as in evaluation mode, are the kernel's; elsewhere it stays, with the
    reason in the report. The layer's own forward computes outside the envelope, and when the layer is no
    longer what it was: a submodule replaced, hooked or set otherwise. Layers that were built of this
    package's specs are reported, too.

    Raises ConflictError where another package computes such a layer, NothingReplacedError where none is
    replaced. The model is as it was then.
    """
    report = Report()
    chosen: list[tuple[nn.Module, list[Kernel]]] = []
    for name, layer in model.named_modules():
        mine = [kernel for kernel in kernels if kernel.layer and kernel.layer in _classes(layer)]
        holder, by = vars(layer).get(_MARK, ("", ""))
        if not mine:
            if holder == package:
                report.replaced[name] = by
            continue
        if holder not in ("", package):
            raise ConflictError(f"{name} is computed by {holder} already: call its remove(model) first")
        changed = "forward" in vars(layer) and not holder
        reasons = {
            each.name: "its forward has been replaced by something else" if changed else why_not(each, layer)
            for each in mine
        }
        fit = [kernel for kernel in mine if not reasons[kernel.name]]
        if fit:
            report.replaced[name] = _names(fit)
            chosen.append((layer, fit))
        else:
            report.left[name] = "; ".join(dict.fromkeys(reasons.values()))
    if not report.replaced:
        wanted = (
            ", ".join(dict.fromkeys(kernel.layer for kernel in kernels if kernel.layer)) or "no class at all"
        )
        why = "\n".join(f"  {name}: {reason}" for name, reason in report.left.items())
        raise NothingReplacedError(
            f"{package} replaces nothing here: it stands in for {wanted}"
            + (f", and left\n{why}" if why else ", and the model has no such layer")
        )
    for layer, fit in chosen:
        put(layer, fit, package)
    return report


def put(layer: nn.Module, kernels: Sequence[Kernel], package: str) -> None:
    """Have a layer call kernels that fit it."""
    remove(layer, package)
    setattr(layer, _MARK, (package, _names(kernels)))
    remember(layer, kernels)
    layer.forward = MethodType(_forward(tuple(kernels)), layer)  # so that a deep copy calls its own


def remember(layer: nn.Module, kernels: Sequence[Kernel]) -> Parts:
    """Note of what the layer consists, with which it was found to compute as these kernels do."""
    parts = Parts(layer, [tuple(kernel.parameters.values()) for kernel in kernels])
    setattr(layer, _PARTS, parts)
    return parts


def remove(model: nn.Module, package: str) -> int:
    """Have all layers that this package computes compute themselves again; how many there were."""
    count = 0
    for layer in model.modules():
        if vars(layer).get(_MARK, ("", ""))[0] == package:
            del layer.forward  # the instance's; the class has its own
            delattr(layer, _MARK)
            vars(layer).pop(_PARTS, None)
            count += 1
    return count


def _names(kernels: Sequence[Kernel]) -> str:
    return ", ".join(kernel.name for kernel in kernels)


def _classes(layer: nn.Module) -> Iterator[str]:
    """The layer's class, in full and by its bare name."""
    found = type(layer)
    yield f"{found.__module__}.{found.__qualname__}"
    yield found.__qualname__


def why_not(kernel: Kernel, layer: nn.Module) -> str:
    """Why this layer is not what the kernel was made for; "" where it is."""
    if kernel.why_not_here:
        return kernel.why_not_here
    if (count := _required(stock(layer))) > len(kernel.inputs):
        return f"its forward takes {count} inputs, the kernel {len(kernel.inputs)}"
    held = dict(layer.named_parameters()) | dict(layer.named_buffers())
    wanted = dict(zip(kernel.parameters.values(), kernel.weights, strict=True))
    if extra := sorted(set(held) - set(wanted)):
        return f"it has {', '.join(extra)}, which the kernel does not take"
    for name, argument in wanted.items():
        if name not in held:
            return f"it has no {name}"
        if type(held[name]).__name__ == "DTensor":
            return f"its {name} is distributed already: apply this before fully_shard or parallelize_module"
        if why := argument.problem(held[name]).replace(argument.name, name, 1):
            return why
    return hooked(layer) or _differs(kernel, layer, [held[name] for name in wanted])


def fitting(kernels: Sequence[Kernel], layer: nn.Module) -> list[Kernel]:
    """Those that were made for this layer; why others were not is logged."""
    found = []
    for kernel in kernels:
        if reason := why_not(kernel, layer):
            kernel.say(reason)
        else:
            found.append(kernel)
    return found


def _required(forward: Callable[..., Any]) -> int:
    """How many arguments a bound method must be given."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in inspect.signature(forward).parameters.values() if p.kind in kinds]
    return sum(p.default is p.empty for p in given)


def _differs(kernel: Kernel, layer: nn.Module, weights: Sequence[torch.Tensor]) -> str:
    """How the layer computes something else than the reference on numbers by chance, such as with another
    epsilon, or a dropout in training mode; "" where it does not.
    """
    inputs = [each.like(torch.Generator().manual_seed(0)) for each in kernel.inputs]
    with _left_as_it_was(layer), torch.no_grad(), verified():
        right = kernel.by_reference(*(each.clone() for each in (*inputs, *weights)))
        for mode in (False, True):
            layer.train(mode)
            when = f"in {'training' if mode else 'evaluation'} mode it"
            try:
                drawn = _drawn()
                runs = [stock(layer)(*(each.clone() for each in inputs)) for _ in range(2)]
            except Exception as error:  # noqa: BLE001 - it is the model's code
                said = str(error).split("\n")[0]
                return f"it cannot be called with the kernel's inputs ({type(error).__name__}: {said})"
            if _drawn() != drawn:
                return f"{when} draws random numbers, for a dropout, say"
            for found, wanted, what in (
                (runs[1], runs[0], "computes something else at each call"),
                (runs[0], right, "computes something else than the kernel's reference"),
            ):
                if worst := _unlike(found, wanted):
                    return f"{when} {what} ({worst})"
            if kernel.under_autocast:
                with torch.autocast("cpu", torch.bfloat16):
                    found = stock(layer)(*inputs)
                if worst := _unlike(found, runs[0]):
                    return f"under autocast it computes something else ({worst}), unlike the reference"
    return ""


def _unlike(found: Any, wanted: Any) -> str:
    """How far apart they are; "" for close ones."""
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True)
    except AssertionError as error:
        lines = str(error).strip().splitlines()
        return next((line for line in lines if line.startswith("Greatest absolute")), lines[0]).lower()
    return ""


def _drawn() -> tuple[list[int], Any]:
    """What random numbers come next."""
    return torch.get_rng_state().tolist(), random.getstate()


@contextmanager
def _left_as_it_was(layer: nn.Module) -> Iterator[None]:
    """Takes back what calls in the block do to it: modes, buffers, attributes, and random numbers drawn."""
    attributes = [(module, dict(vars(module))) for module in layer.modules()]
    held = [(module._buffers, dict(module._buffers)) for module in layer.modules()]
    buffers = [(each, each.clone()) for each in layer.buffers()]
    drawn = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(drawn)
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)
        for now, named in held:
            now.clear()
            now.update(named)
        with torch.no_grad():
            for each, value in buffers:
                if not torch.equal(each, value):
                    each.copy_(value)


def _forward(kernels: Sequence[Kernel]) -> Callable[..., Any]:
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        return computed(self, kernels, inputs, named)

    return forward


def computed(
    layer: nn.Module, kernels: Sequence[Kernel], inputs: Sequence[Any], named: Mapping[str, Any] = NONE
) -> Any:
    """What `layer` makes of a call: by the first kernel in whose envelope it is, or by its own forward."""
    parts: Parts = vars(layer).get(_PARTS) or remember(layer, kernels)
    if not (why := parts.changed()):
        for place, kernel in enumerate(kernels):
            if named or len(inputs) != len(kernel.inputs):
                why = f"it was called with something else than {len(kernel.inputs)} tensors"
                continue
            tensors = (*inputs, *parts.held(place))
            gains, why = kernel.pays(tensors)
            if not gains:
                continue
            fits, why = kernel.check(*tensors)
            if fits:
                return kernel.run(*tensors)
            made, why = kernel.by_parts(why, *tensors)
            if not why:
                return made
    if kernels and not torch.compiler.is_compiling():
        kernels[-1].say(why)
    return stock_class(layer).forward(layer, *inputs, **named)  # not bound first, for torch.compile


def stock(layer: nn.Module) -> Callable[..., Any]:
    """The layer's own forward, as its model has it."""
    return MethodType(stock_class(layer).forward, layer)
