"""Looking at each of torch's operators as it is called."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kernelwright.kernelbench.records import ProductPrecision

# float64 and complex operands are in none; no processor has faster products for them than for float32.
_PRECISIONS: dict[torch.dtype, ProductPrecision] = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.int8: "int8",
    torch.uint8: "int8",
}


def _recurrent_flops(*args: Any, out_val: Any = None, **_: Any) -> int:
    """Return what cuDNN's or oneDNN's whole recurrent network computes, which torch does not count.

    Every matrix among its weights is applied once to every position of the input, (batch, time, features).
    """
    positions = args[0].numel() // args[0].shape[-1]
    weights = args[1] if isinstance(args[1], (list, tuple)) else args[1:3]
    return 2 * positions * sum(weight.numel() for weight in weights if weight.dim() == 2)


_COUNTS = {torch.ops.aten._cudnn_rnn: _recurrent_flops, torch.ops.aten.mkldnn_rnn_layer: _recurrent_flops}


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the floating-point operations of a call of an operator: of products and convolutions only."""
    count = flop_registry.get(func._overloadpacket) or _COUNTS.get(func._overloadpacket)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


class OperatorMode(TorchDispatchMode):
    """A dispatch mode without torch.compile's front end, whose import takes longer than an evaluator's start.

    torch keeps that from compiling what modes do, and imports it to say so.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class FlopCounter(OperatorMode):
    """Sums the floating-point operations of matrix products and convolutions, as torch counts them.

    torch's own FlopCounterMode gives the same number, in total, but for recurrent networks, and is no
    OperatorMode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_dtype = Counter[torch.dtype]()  # of the first operand

    @property
    def flops(self) -> int:
        return self.by_dtype.total()

    def by_precision(self, tf32: bool) -> dict[ProductPrecision, int]:
        """Return the sums by the precision of operands; with `tf32`, products of float32 are in that."""
        found = Counter[ProductPrecision]()
        for dtype, flops in self.by_dtype.items():
            rounded = tf32 and dtype is torch.float32
            found["tf32" if rounded else _PRECISIONS.get(dtype, "fp32")] += flops
        return dict(found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if flops := flops_of(func, args, kwargs, result):
            operand = next(arg for arg in args if isinstance(arg, torch.Tensor))
            self.by_dtype[operand.dtype] += flops
        return result
