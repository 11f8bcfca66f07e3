"""Layers of vLLM, which builds another class in the place of its own if a plugin has registered one.

https://docs.vllm.ai/en/stable/design/custom_op
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..kernel import DropInKernel
from ..parts import positional
from ..swap import STOCK, ConflictError, fitting, put


def register(layers: Mapping[type, Sequence[DropInKernel]], package: str) -> None:
    """Have vLLM build drop-ins for these layers from now on; again it does nothing.

    Raises ConflictError if another plugin has registered a class for one of them.
    """
    from vllm.model_executor.custom_op import op_registry_oot

    for stock, kernels in layers.items():
        known = op_registry_oot.get(stock.__name__)
        if getattr(known, STOCK, None) is stock and known.package == package:
            continue
        if known is not None:
            raise ConflictError(
                f"{known.__module__} has already registered a class for vLLM's {stock.__name__}: "
                "name one of the two plugins in VLLM_PLUGINS"
            )
        name = getattr(stock, "name", stock.__name__)
        made: Any = drop_in(stock, kernels, package)
        stock.register_oot(made, name=stock.__name__)  # type: ignore[attr-defined]
        made.name = name  # by which --compilation-config turns vLLM's own kernels on and off


def drop_in(stock: type, kernels: Sequence[DropInKernel], package: str) -> type:
    """Return a subclass of `stock` whose layers are checked once they are built, and computed by kernels."""

    def build(self: Any, *args: Any, **named: Any) -> None:
        stock.__init__(self, *args, **named)  # type: ignore[misc]
        if fit := fitting(kernels, self, for_inference=True):
            parts = put(self, fit, package)
            if native := getattr(self, "forward_native", None):  # to which forward passes any arguments on
                parts.takes = positional(native)

    words = f"`{stock.__name__}` by {', '.join(kernel.name for kernel in kernels)}."
    own = {"__init__": build, "__doc__": words, "package": package, STOCK: stock}
    return type(f"DropIn{stock.__name__}", (stock,), own)
