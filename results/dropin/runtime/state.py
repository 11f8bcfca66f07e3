"""The state of torch in which kernels were verified.

No autocast, float32 as default dtype, no default device, no forward-mode derivatives, no tracing. In another
state code does something else: under autocast a product is bfloat16, and tensors allocated without a dtype or
device take the defaults. So calls there are outside the envelope.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.jit import is_tracing
from torch.overrides import _get_current_function_mode_stack as modes
from torch.utils._device import DeviceContext

from .device import NAME, TYPE

_DTYPE = torch.float32
_autocast, _default_dtype = torch.is_autocast_enabled, torch.get_default_dtype
_transforms = torch._C._are_functorch_transforms_active
_functions_are_seen = torch._C._len_torch_function_stack  # by modes, of which a default device is one


def foreign() -> str:
    """Return the reason this is another state; "" if it is not. It runs before every call, in 0.4 µs."""
    return f"torch.autocast is on for {NAME}" if _autocast(TYPE) else foreign_but_for_autocast()


def foreign_but_for_autocast() -> str:
    """Return the reason this is another state, autocast apart; "" if it is not."""
    if _default_dtype() is not _DTYPE:
        return "torch's default dtype is not float32"
    if _functions_are_seen():
        devices = [mode.device.type if isinstance(mode, DeviceContext) else "" for mode in modes()]
        if not all(devices):
            return "a TorchFunctionMode is on, which may change what torch computes"
        if devices and devices[-1] != "cpu":  # the innermost decides
            return "torch's default device is not the CPU"
    if _transforms():  # of which operators with an autograd of their own take none
        return "a transform of torch.func is on"
    if forward_ad._current_level >= 0:  # kernels have no tangents
        return "forward-mode derivatives are taken"
    if is_tracing():  # which would see what is allocated, not what is computed
        return "torch.jit.trace records the call"
    return ""


@contextmanager
def verified() -> Iterator[None]:
    """Put torch into the verified state in the block, whatever it was before."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(_DTYPE)
    try:
        with torch.autocast(TYPE, enabled=False), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def guarded(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return `compute` in the verified state, for code called without an envelope: operators and backwards.

    A backward may run under an autocast that its forward did not.
    """

    def call(*tensors: torch.Tensor) -> Any:
        if not foreign():
            return compute(*tensors)
        with verified():
            return compute(*tensors)

    return call
