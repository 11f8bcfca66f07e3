"""Helion in its own interpreter, where there is no GPU: torch's operators on tiles, with launches noted."""

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from kernelwright.kernelbench.emulate import history
from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu

_PRODUCTS = (torch.mm, torch.bmm)


class _WideProducts(TorchFunctionMode):
    """Mode in which products whose result is wider than their operands, a GPU's alone, run on the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _PRODUCTS and (wide := given.pop("out_dtype", None)) is not None:
            args = [each.to(wide) for each in args]
        return func(*args, **given)


def interpret_helion() -> None:
    """Have Helion's kernels interpreted from now on; nothing is changed without Helion."""
    os.environ.pop("TRITON_INTERPRET", None)  # which Helion refuses beside its own
    os.environ["HELION_INTERPRET"] = "1"
    try:
        kernels: Any = importlib.import_module("helion.runtime.kernel")
    except ImportError:
        return
    function = kernels.Kernel
    if hasattr(function, "kernelwright"):
        return
    call = function.__call__

    def noted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        with history.watched(), _as_on_cpu(), _WideProducts():
            try:
                result = call(kernel, *args, **kwargs)
            except NotImplementedError as error:  # by torch, of an operator that the CPU lacks
                raise Unsupported(f"what Helion's interpreter stops at ({error})"[:500]) from error
        history.has_run(kernel.fn.__name__)
        return result

    function.kernelwright, function.__call__ = True, noted


def _as_on_cpu() -> Any:
    """Return a block in which tensors report where they are: the interpreter makes others beside them."""
    pretended = isinstance(_get_current_function_mode(), TorchOnGpu)
    return _pop_mode_temporarily() if pretended else contextlib.nullcontext()
