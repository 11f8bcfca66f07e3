"""Insertion of kernels into a model and their removal, with a report of what was replaced and why."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn

from .alike import differs
from .kernel import DropInKernel
from .parts import STOCK, LayerSnapshot, hooked, stock, stock_class

__all__ = ["STOCK", "apply", "computed", "fitting", "put", "remember", "remove", "stock", "why_not"]

NONE: Mapping[str, Any] = {}
_MARK = "_kernelwright_drop_in"  # on a layer: which package computes it, by which kernels
_PARTS = "_kernelwright_parts"  # on a layer: what it was then


class DropInError(Exception):
    """A drop-in that cannot be put in; the message gives the reason."""


class NothingReplacedError(DropInError):
    """A mapping that replaces nothing."""


class ConflictError(DropInError):
    """A layer that another package already computes."""


@dataclass
class Report:
    """Replaced and left layers, by their name in the model."""

    replaced: dict[str, str] = field(default_factory=dict)  # -> the kernels that compute them
    left: dict[str, str] = field(default_factory=dict)  # of the same class, not replaced -> why

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.left)} left"]
        lines += [f"  {name}: {kernels}" for name, kernels in self.replaced.items()]
        lines += [f"  {name} is left: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def apply(model: nn.Module, kernels: Sequence[DropInKernel], package: str) -> Report:
    """Replace layers by kernels, each used where the call is inside its envelope.

    A layer is replaced if its class, the names, shapes and dtypes of its parameters, and what it computes on
    random numbers, in training as in evaluation mode, match the kernel's; otherwise it stays, with the reason
    in the report. The layer's own forward computes outside the envelope, and once the layer has changed: a
    submodule replaced, hooked or set otherwise. Layers built from this package's specs are reported, too.
    Raises ConflictError if another package computes such a layer, NothingReplacedError if none is replaced.
    The model is then unchanged.
    """
    report = Report()
    chosen: list[tuple[nn.Module, list[DropInKernel]]] = []
    outgrown: list[nn.Module] = []  # what was put in may be called by a forward that was put over it
    for name, layer in model.named_modules():
        mine = [kernel for kernel in kernels if kernel.layer and kernel.layer in _classes(layer)]
        holder, by = vars(layer).get(_MARK, ("", ""))
        if not mine:
            if holder == package:
                report.replaced[name] = by
            continue
        if holder not in ("", package):
            raise ConflictError(f"{name} is already computed by {holder}: call its remove(model) first")
        changed = _other_forward(layer)
        reasons = {
            each.name: "its forward has been replaced" if changed else why_not(each, layer) for each in mine
        }
        fit = [kernel for kernel in mine if not reasons[kernel.name]]
        if fit:
            report.replaced[name] = _names(fit)
            chosen.append((layer, fit))
        else:
            if changed and holder:
                outgrown.append(layer)
            report.left[name] = "; ".join(dict.fromkeys(reasons.values()))
    if not report.replaced:
        wanted = (
            ", ".join(dict.fromkeys(kernel.layer for kernel in kernels if kernel.layer)) or "no class at all"
        )
        why = "\n".join(f"  {name}: {reason}" for name, reason in report.left.items())
        raise NothingReplacedError(
            f"{package} replaces nothing here: it has kernels for {wanted}"
            + (f", and left\n{why}" if why else ", and the model has no such layer")
        )
    for layer, fit in chosen:
        put(layer, fit, package)
    for layer in outgrown:
        _forget(layer)
    return report


def put(layer: nn.Module, kernels: Sequence[DropInKernel], package: str) -> None:
    """Make a layer call kernels that fit it."""
    remove(layer, package)
    mark = (package, _names(kernels))
    setattr(layer, _MARK, mark)
    remember(layer, kernels)
    layer.forward = MethodType(_forward(tuple(kernels), mark), layer)  # so that a deep copy calls its own


def remember(layer: nn.Module, kernels: Sequence[DropInKernel]) -> LayerSnapshot:
    """Record the layer's parts, with which it was found to compute as these kernels do."""
    parts = LayerSnapshot(layer, [tuple(kernel.parameters.values()) for kernel in kernels])
    setattr(layer, _PARTS, parts)
    return parts


def remove(model: nn.Module, package: str) -> int:
    """Restore the own forward of all layers that this package computes; return their number."""
    count = 0
    for layer in model.modules():
        if vars(layer).get(_MARK, ("", ""))[0] == package:
            if "forward" in vars(layer) and not _other_forward(layer):
                del layer.forward  # the instance's; the class has its own
            _forget(layer)
            count += 1
    return count


def _forget(layer: nn.Module) -> None:
    """Make what `put` put in compute as the layer's own forward does, wherever it is called from."""
    delattr(layer, _MARK)
    vars(layer).pop(_PARTS, None)


def _other_forward(layer: nn.Module) -> bool:
    """Return True if something else has replaced the layer's forward, or wrapped what `put` put in."""
    if (found := vars(layer).get("forward")) is None:
        return False
    computes = getattr(found, "__func__", None)  # after unpickling it is the class's
    return not (hasattr(computes, _MARK) or computes is stock_class(layer).forward)


def _names(kernels: Sequence[DropInKernel]) -> str:
    return ", ".join(kernel.name for kernel in kernels)


def _classes(layer: nn.Module) -> Iterator[str]:
    """Yield the layer's class, in full and by its bare name."""
    found = type(layer)
    yield f"{found.__module__}.{found.__qualname__}"
    yield found.__qualname__


def why_not(kernel: DropInKernel, layer: nn.Module) -> str:
    """Return the reason this layer is not what the kernel was made for; "" if it is."""
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
            return f"its {name} is already distributed: apply this before fully_shard or parallelize_module"
        if why := argument.problem(held[name]).replace(argument.name, name, 1):
            return why
    return hooked(layer) or differs(kernel, layer, list(wanted))


def fitting(kernels: Sequence[DropInKernel], layer: nn.Module) -> list[DropInKernel]:
    """Return the kernels that were made for this layer; log the reasons others were not."""
    found = []
    for kernel in kernels:
        if reason := why_not(kernel, layer):
            kernel.say(reason)
        else:
            found.append(kernel)
    return found


def _required(forward: Callable[..., Any]) -> int:
    """Return the number of required arguments of a bound method."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in inspect.signature(forward).parameters.values() if p.kind in kinds]
    return sum(p.default is p.empty for p in given)


def _forward(kernels: Sequence[DropInKernel], mark: tuple[str, str]) -> Callable[..., Any]:
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        if vars(self).get(_MARK) != mark:  # somebody has kept this, and it was taken out
            return stock_class(self).forward(self, *inputs, **named)
        return computed(self, kernels, inputs, named)

    setattr(forward, _MARK, mark)
    return forward


def computed(
    layer: nn.Module, kernels: Sequence[DropInKernel], inputs: Sequence[Any], named: Mapping[str, Any] = NONE
) -> Any:
    """Compute a call of `layer` by the first kernel whose envelope it is in, or by its own forward."""
    parts: LayerSnapshot = vars(layer).get(_PARTS) or remember(layer, kernels)
    if not (why := parts.changed()):
        for place, kernel in enumerate(kernels):
            if named or len(inputs) != len(kernel.inputs):
                why = f"it was not called with {len(kernel.inputs)} positional tensors"
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
