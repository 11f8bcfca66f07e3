"""Insertion of kernels into a model and their removal, with a report of what was replaced and why."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from torch import nn

from . import functions
from .alike import differs
from .deferred import DeferredOutput, LossOfLayer
from .deferred import why_not as not_waiting
from .kernel import DropInKernel
from .parts import STOCK, LayerSnapshot, classes_of, hooked, stock, stock_class
from .usage import ReplacedCalls, usage_of

__all__ = [
    "STOCK",
    "ReplacedCalls",
    "apply",
    "computed",
    "fitting",
    "put",
    "remember",
    "remove",
    "report",
    "stock",
    "why_not",
]

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
    """Replaced and left layers, by their name in the model, and functions, by their module's."""

    replaced: dict[str, str] = field(default_factory=dict)  # -> the kernels that compute them
    left: dict[str, str] = field(default_factory=dict)  # of the same class, not replaced -> why
    elsewhere: dict[str, list[str]] = field(default_factory=dict)  # function -> other names, not replaced

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.left)} left"]
        lines += [f"  {name}: {kernels}" for name, kernels in self.replaced.items()]
        lines += [f"  {name} is left: {why}" for name, why in self.left.items()]
        for name, others in self.elsewhere.items():
            lines.append(f"  {name} is itself under other names: {', '.join(others)}")
        return "\n".join(lines)


def apply(model: nn.Module, kernels: Sequence[DropInKernel], package: str) -> Report:
    """Replace layers by kernels, each used where the call is inside its envelope.

    A layer is replaced if its class, the names, shapes and dtypes of its parameters, and what it computes on
    random numbers, in training as in evaluation mode, match the kernel's; otherwise it stays, with the reason
    in the report. The layer's own forward computes outside the envelope, and once the layer has changed: a
    submodule replaced, hooked or set otherwise. Layers built from this package's specs are reported, too.
    Functions are replaced in their modules, for all models, if these are imported.
    Raises ConflictError if another package computes such a layer, NothingReplacedError if none is replaced.
    The model is then unchanged.
    """
    report = Report()
    chosen: list[tuple[nn.Module, list[DropInKernel]]] = []
    outgrown: list[nn.Module] = []  # what was put in may be called by a forward that was put over it
    for name, layer in model.named_modules():
        mine = [kernel for kernel in kernels if _is_for(kernel, type(layer))]
        holder, by = vars(layer).get(_MARK, ("", ""))
        if not mine:
            if holder == package:
                report.replaced[name] = by
            elif base := next((each for each in type(layer).__mro__[1:] if _any_is_for(kernels, each)), None):
                own, of = type(layer).__qualname__, base.__qualname__
                report.left[name] = f"{own} is a subclass of {of}: export the kernel with --layer {own}, too"
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
    patches, left = functions.patched(kernels, package)
    report.left |= left
    report.replaced |= {each.path: _names(each.kernels) for each in patches}
    if not report.replaced:
        names = (name for kernel in kernels for name in (*kernel.layers, *kernel.functions))
        wanted = ", ".join(dict.fromkeys(names)) or "no class at all"
        why = "\n".join(f"  {name}: {reason}" for name, reason in report.left.items())
        raise NothingReplacedError(
            f"{package} replaces nothing here: it has kernels for {wanted}"
            + (f", and left\n{why}" if why else ", and the model has no such layer")
        )
    for layer, fit in chosen:
        put(layer, fit, package)
    for layer in outgrown:
        _forget(layer)
    for patch in patches:
        if others := functions.put(patch):
            report.elsewhere[patch.path] = others
    return report


def put(layer: nn.Module, kernels: Sequence[DropInKernel], package: str) -> LayerSnapshot:
    """Make a layer call kernels that fit it; return what its parts are now."""
    remove(layer, package)
    mark = (package, _names(kernels))
    setattr(layer, _MARK, mark)
    parts = remember(layer, kernels)
    layer.forward = MethodType(_forward(tuple(kernels), mark), layer)  # so that a deep copy calls its own
    return parts


def remember(layer: nn.Module, kernels: Sequence[DropInKernel]) -> LayerSnapshot:
    """Record the layer's parts, with which it was found to compute as these kernels do."""
    parts = LayerSnapshot(layer, [kernel.names_in(layer) for kernel in kernels], kernels)
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


def _is_for(kernel: DropInKernel, kind: type) -> bool:
    return any(each in kernel.layers for each in classes_of(kind))


def _any_is_for(kernels: Sequence[DropInKernel], kind: type) -> bool:
    return any(_is_for(kernel, kind) for kernel in kernels)


def why_not(kernel: DropInKernel, layer: nn.Module, for_inference: bool = False) -> str:
    """Return the reason this layer is not what the kernel was made for, see `differs`; "" if it is."""
    if kernel.why_not_here:
        return kernel.why_not_here
    if kernel.of_output and type(layer) is not nn.Linear:
        return "only the output of a torch.nn.Linear can wait for a function"
    if (count := _required(stock(layer))) > len(kernel.inputs):
        return f"its forward takes {count} inputs, the kernel {len(kernel.inputs)}"
    held = dict(layer.named_parameters()) | dict(layer.named_buffers())
    wanted = dict(zip(kernel.names_in(layer), kernel.weights, strict=True))
    if extra := sorted(set(held) - set(wanted)):
        return f"it has {', '.join(extra)}, which the kernel does not take"
    for name, argument in wanted.items():
        if name not in held:
            return f"it has no {name}"
        if type(held[name]).__name__ == "DTensor":
            return f"its {name} is already distributed: apply this before fully_shard or parallelize_module"
        if why := argument.problem(held[name]).replace(argument.name, name, 1):
            return why
    if kernel.of_output:
        names = [f"layer.{name}" for name in wanted]
        return differs(kernel, LossOfLayer(layer, kernel), names, for_inference)
    return hooked(layer) or differs(kernel, layer, list(wanted), for_inference)


def fitting(
    kernels: Sequence[DropInKernel], layer: nn.Module, for_inference: bool = False
) -> list[DropInKernel]:
    """Return the kernels that were made for this layer; log the reasons others were not."""
    found = []
    for kernel in kernels:
        if reason := why_not(kernel, layer, for_inference):
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
        given = _by_place(inputs, named, parts.takes) if named else inputs
        waited_for: list[DropInKernel] = []
        for place, kernel in enumerate(kernels):
            if kernel.of_output:
                why = not_waiting(kernel, layer, given or (), parts.held(place))
                waited_for += [] if why else [kernel]
                continue
            if given is None or len(given) != len(kernel.inputs):
                why = f"it was not called with {len(kernel.inputs)} tensors"
                continue
            tensors = (*given, *parts.held(place))
            gains, why = kernel.pays(tensors)
            if not gains:
                continue
            fits, why = kernel.check(*tensors)
            if fits:
                parts.calls.add(kernel)
                return kernel.run(*tensors)
            made, why = kernel.by_parts(why, *tensors)
            if not why:
                parts.calls.add(kernel)
                return made
        if waited_for:
            return DeferredOutput.of(layer, waited_for, parts, (given or ())[0])
    if kernels:
        parts.calls.add(kernels[-1], why)
    return stock_class(layer).forward(layer, *inputs, **named)  # not bound first, for torch.compile


def report(model: nn.Module, kernels: Sequence[DropInKernel], package: str) -> ReplacedCalls:
    """Return how often kernels computed the model's layers since they were replaced."""
    usage = usage_of(model, kernels, _PARTS)
    usage.layers |= {each.path: each.calls.so_far() for each in functions.put_in(kernels, package)}
    return usage


def _by_place(inputs: Sequence[Any], named: Mapping[str, Any], takes: Sequence[str]) -> Sequence[Any] | None:
    """Return the arguments of a call by their place, None if some have none."""
    rest = takes[len(inputs) : len(inputs) + len(named)]
    if len(rest) < len(named) or any(name not in named for name in rest):
        return None
    return (*inputs, *[named[name] for name in rest])
