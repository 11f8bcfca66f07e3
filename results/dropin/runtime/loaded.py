"""A kernel's file, called with the weights of the layer that it computes."""

import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from .operators import Tensors, detached


class Loaded:
    """`ModelNew` of a file, called with weights that are passed to each call."""

    def __init__(self, module: ModuleType, weights: Sequence[str], inputs: int) -> None:
        arguments = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
        model = module.ModelNew(*arguments)
        self._forward = model.forward
        self._inputs = inputs if weights else None
        self._places = [(*holder_of(model, name), inputs + place) for place, name in enumerate(weights)]
        self._lock = threading.Lock()
        for holder, name, _ in self._places:
            holder[name] = None

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        with self._lock:  # threads must not compute with each other's weights
            try:
                for holder, name, place in self._places:
                    holder[name] = tensors[place]
                found = self._forward(*tensors[: self._inputs])
            finally:  # else they would live as long as the package
                for holder, name, _ in self._places:
                    holder[name] = None
        return detached(found if type(found) is tuple else (found,))


def holder_of(model: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds a parameter or buffer, and its key, for cheap replacement."""
    path, _, own = name.rpartition(".")
    holder = model.get_submodule(path)
    kept: dict[str, Any] = holder._parameters if own in holder._parameters else holder._buffers
    return kept, own
