"""Layers for the `kernels` library of Hugging Face, whose `kernelize` replaces a layer's forward by theirs.

`kernelize` only compares names and signatures. So each layer is checked when it is first called: if it is not
what the kernel was made for, it computes as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ..kernel import DropInKernel
from ..swap import Report, computed, remember, stock, why_not

_CHOSEN = "_kernelwright_kernels"  # on a layer


@dataclass
class _Chosen:
    """The kernels that compute a layer, and the reasons others do not. A pickled layer is checked again."""

    kernels: list[DropInKernel]
    reasons: list[str]

    def __deepcopy__(self, memo: object) -> "_Chosen":
        return self

    def __reduce__(self) -> Any:
        return type(None), ()


def layers_of(kernels: Sequence[DropInKernel]) -> SimpleNamespace:
    """Return a class for each layer that a kernel replaces, by its bare name."""
    named: dict[str, list[DropInKernel]] = {}
    for kernel in kernels:
        for layer in kernel.layers:
            named.setdefault(layer.rpartition(".")[2], []).append(kernel)
    return SimpleNamespace(**{name: _layer(name, mine) for name, mine in named.items()})


def kernelized(model: nn.Module) -> Report:
    """Report which called layers compute by these kernels, and which do not and why."""
    report = Report()
    for name, layer in model.named_modules():
        if vars(layer).get(_CHOSEN):
            chosen: _Chosen = vars(layer)[_CHOSEN]
            if chosen.kernels:
                report.replaced[name] = ", ".join(kernel.name for kernel in chosen.kernels)
            else:
                report.left[name] = "; ".join(dict.fromkeys(chosen.reasons))
    return report


def _layer(name: str, kernels: Sequence[DropInKernel]) -> type[nn.Module]:
    """Create a stateless class with a forward of as many arguments as the kernels have inputs."""

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        return _call(self, tuple(kernels), inputs, named)

    taken = ["self", *(f"x{place}" for place in range(len(kernels[0].inputs)))]
    forward.__signature__ = Signature(  # type: ignore[attr-defined] # which kernelize compares, but for names
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in taken]
    )
    own = {
        "forward": forward,
        "has_backward": all(kernel.trainable for kernel in kernels),
        "can_torch_compile": True,
        "__doc__": f"`{name}` by {', '.join(kernel.name for kernel in kernels)}.",
    }
    return type(name, (nn.Module,), own)


def _call(
    layer: nn.Module, kernels: Sequence[DropInKernel], inputs: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    chosen: _Chosen | None = vars(layer).get(_CHOSEN)
    if chosen is None:
        if torch.compiler.is_compiling():  # nothing is called to be looked at while a graph is traced
            return stock(layer)(*inputs, **named)
        reasons = [why_not(kernel, layer) for kernel in kernels]
        fit = [kernel for kernel, reason in zip(kernels, reasons, strict=True) if not reason]
        for kernel, reason in zip(kernels, reasons, strict=True):
            if reason:
                kernel.say(reason)
        remember(layer, fit)
        chosen = vars(layer)[_CHOSEN] = _Chosen(fit, reasons)
    return computed(layer, chosen.kernels, inputs, named)
