"""A kernel's file, called with the weights of the layer that it computes."""

import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from .device import IS_INTERPRETED, KIND, launching
from .operators import Compute, Tensors, detached


class Loaded:
    """`ModelNew` of a file, called with weights that are passed to each call."""

    def __init__(self, module: ModuleType, weights: Sequence[str], inputs: int) -> None:
        arguments = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
        model = module.ModelNew(*arguments)
        self._module = module
        self._forward, self._launching = model.forward, launching(model.forward)
        self._inputs = inputs if weights else None
        self._places = [(*holder_of(model, name), inputs + place) for place, name in enumerate(weights)]
        self._lock = threading.Lock()
        for holder, name, _ in self._places:
            holder[name] = None

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        return self._computed(self._launching, tensors)

    def _computed(self, forward: Callable[..., Any], tensors: Tensors) -> Tensors:
        with self._lock:  # threads must not compute with each other's weights
            try:
                for holder, name, place in self._places:
                    holder[name] = tensors[place]
                found = forward(*tensors[: self._inputs])
            finally:  # else they would live as long as the package
                for holder, name, _ in self._places:
                    holder[name] = None
        return detached(found if type(found) is tuple else (found,))

    @property
    def traced(self) -> Compute | None:
        """The same with launches that a compiler sees, as it does those of its own kernels; None of C++."""
        if KIND == "cpu" or IS_INTERPRETED or not _launched(self._module):
            return None

        def call(*tensors: torch.Tensor) -> Tensors:
            kernels = _launched(self._module)
            vars(self._module).update({name: torch.library.wrap_triton(k) for name, k in kernels.items()})
            try:
                return self._computed(self._forward, tensors)
            finally:
                vars(self._module).update(kernels)

        return call


def _launched(module: ModuleType) -> dict[str, Any]:
    """Return a file's Triton kernels, by their names in it."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    return {name: each for name, each in vars(module).items() if isinstance(each, JITFunction | Autotuner)}


def holder_of(model: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds a parameter or buffer, and its key, for cheap replacement."""
    path, _, own = name.rpartition(".")
    holder = model.get_submodule(path)
    kept: dict[str, Any] = holder._parameters if own in holder._parameters else holder._buffers
    return kept, own
