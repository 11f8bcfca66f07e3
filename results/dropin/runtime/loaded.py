"""A kernel's file, called with the weights of the layer that it computes."""

import ast
import inspect
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from .device import IS_EMULATED, KIND, launching
from .operators import Compute, Tensors, detached

# In files of which the launches that follow are not all there are, or are not Triton's.
_LAUNCH_OTHERWISE = ("compile_cuda", "gluon", "helion", "cutlass", "tilelang", "numba", "cupy", "cuda.tile")


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
            return self._with_weights(forward, tensors)

    def _with_weights(self, forward: Callable[..., Any], tensors: Tensors) -> Tensors:
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
        """The same with launches that a compiler sees, as it does those of its own kernels.

        None of C++, and of a file whose launches are not all told from its text.
        """
        kernels = {} if KIND == "cpu" or IS_EMULATED else launched(self._module)
        if not kernels:
            return None
        seen = {name: torch.library.wrap_triton(kernel) for name, kernel in kernels.items()}
        own = {name: vars(self._module)[name] for name in kernels}

        def call(*tensors: torch.Tensor) -> Tensors:
            with self._lock:  # or a thread that computes would launch what a compiler is to see
                vars(self._module).update(seen)
                try:
                    return self._with_weights(self._forward, tensors)
                finally:
                    vars(self._module).update(own)

        return call


def launched(module: ModuleType) -> dict[str, Any]:
    """Return the Triton kernels that a file launches as `NAME[grid](...)`, by these names.

    Empty where there may be other launches: of CUDA C++, and of a kernel that is neither one of these nor
    called by another.
    Kernels that others call keep their place while a compiler looks on: it reads them from there.
    """
    text = inspect.getsource(module)
    if "triton" not in text or any(word in text for word in _LAUNCH_OTHERWISE):
        return {}
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def kernel_of(value: Any) -> Any:
        """Return a kernel, also one that a launcher of the file's own holds."""
        inner = getattr(value, "kernel", None)
        found = inner if isinstance(inner, JITFunction) else value
        return found if isinstance(found, JITFunction | Autotuner) else None

    kernels = {name: kernel_of(value) for name, value in vars(module).items()}
    kernels = {name: kernel for name, kernel in kernels.items() if kernel is not None}
    by_host, by_kernels = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            if isinstance(node.func.value, ast.Name):
                by_host.add(node.func.value.id)
        elif isinstance(node, ast.FunctionDef) and node.name in kernels:
            by_kernels |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    found = {name: kernel for name, kernel in kernels.items() if name in by_host}
    unknown = kernels.keys() - found.keys() - by_kernels
    return {} if unknown or by_kernels & found.keys() else found


def holder_of(model: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds a parameter or buffer, and its key, for cheap replacement."""
    path, _, own = name.rpartition(".")
    holder = model.get_submodule(path)
    kept: dict[str, Any] = holder._parameters if own in holder._parameters else holder._buffers
    return kept, own
