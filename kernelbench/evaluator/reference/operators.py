"""Looking at each of torch's operators as it is called."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class OperatorMode(TorchDispatchMode):
    """A dispatch mode without torch.compile's front end, whose import takes longer than an evaluator's start.

    torch keeps that from compiling what modes do, and imports it to say so.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class FlopCounter(OperatorMode):
    """Sums the floating-point operations of matrix products and convolutions, as torch counts them.

    torch's own FlopCounterMode gives the same number, in total, and is no OperatorMode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=result)
        return result
