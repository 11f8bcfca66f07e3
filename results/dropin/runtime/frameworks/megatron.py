"""Specs of Megatron-core, whose layers are named by their classes and built later."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..kernel import DropInKernel
from ..swap import NothingReplacedError, fitting, put


def drop_in(stock: type, kernels: Sequence[DropInKernel], package: str) -> type:
    """Return a class that builds layers of `stock`, computed by those kernels that fit them.

    It builds stock's own objects, with stock's parameters, as after the package's `apply`.
    """

    def build(_: type, *args: Any, **named: Any) -> Any:
        layer = stock(*args, **named)
        if fit := fitting(kernels, layer):
            put(layer, fit, package)
        return layer

    words = f"`{stock.__name__}` by {', '.join(kernel.name for kernel in kernels)}."
    own = {"__new__": build, "__doc__": words}
    return type(f"DropIn{stock.__name__}", (stock,), own)  # Megatron asks of what specs name: issubclass


def replaced(spec: Any, layers: Mapping[type, type], package: str) -> Any:
    """Return a copy of a spec that names other classes.

    Raises NothingReplacedError if it names none of them.
    """
    count, found = _replaced(spec, layers)
    if not count:
        wanted = ", ".join(f"{layer.__module__}.{layer.__name__}" for layer in layers) or "no class at all"
        raise NothingReplacedError(f"{package} replaces nothing here: it has kernels for {wanted}")
    return found


def _replaced(spec: Any, layers: Mapping[type, type]) -> tuple[int, Any]:
    """Return the number of replaced classes, and the copy."""
    if isinstance(spec, type | tuple):
        for layer, other in layers.items():
            if spec in (layer, (layer.__module__, layer.__name__)):  # a ModuleSpec may say where it is
                return 1, other
    if isinstance(spec, list | tuple):
        pairs = [_replaced(each, layers) for each in spec]
        return sum(count for count, _ in pairs), type(spec)(each for _, each in pairs)
    if isinstance(spec, dict):
        parts = {name: _replaced(each, layers) for name, each in spec.items()}
        return sum(count for count, _ in parts.values()), {name: each for name, (_, each) in parts.items()}
    if is_dataclass(spec) and not isinstance(spec, type):
        parts = {each.name: _replaced(getattr(spec, each.name), layers) for each in fields(spec)}
        changed = {name: each for name, (count, each) in parts.items() if count}
        return sum(count for count, _ in parts.values()), replace(spec, **changed)
    return 0, spec
