"""Costs of a reference's operators: what each reads, writes and computes in a call, and its time in eager.

For `torch.softmax(x @ w, -1)` with x: (128, 512) and w: (512, 1000)

    aten.mm(float32[128, 512], float32[512, 1000]) -> float32[128, 1000]       2.8 MB  131 MFLOP
    aten._softmax(float32[128, 1000], -1, False) -> float32[128, 1000]         1.0 MB

Views move nothing and are left out. Equal operators on tensors of equal shapes are one line.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode, flops_of
from kernelwright.kernelbench.records import OperatorCost

_REPEATS = 3  # calls, of which the quickest counts for each operator
_LONGEST = 200  # characters of a signature


@dataclass
class _Costs:
    calls: int = 0
    bytes: int = 0
    flops: int = 0
    seconds: float = 0.0


class _Recording(OperatorMode):
    """Records each operator with what it costs; `mark` returns a point in time."""

    def __init__(self, mark: Callable[[], Any]) -> None:
        super().__init__()
        self._mark = mark
        self.seen: list[tuple[str, int, int, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begin = self._mark()
        result = func(*args, **kwargs)
        end = self._mark()
        given, made = _tensors((args, kwargs)), _tensors(result)
        held = {tensor.untyped_storage().data_ptr() for tensor in given}
        is_view = all(tensor.untyped_storage().data_ptr() in held for tensor in made)
        if made and (not is_view or func._schema.is_mutable):
            signature, moved = _signature(func, args, kwargs, result), _bytes([*given, *made])
            self.seen.append((signature, moved, flops_of(func, args, kwargs, result), begin, end))
        return result


def operator_costs(call: Callable[[], object], device: torch.device) -> list[OperatorCost]:
    """Return the operators of `call`, the one that takes longest first."""
    on_gpu = device.type == "cuda"
    mark = _event if on_gpu else time.perf_counter
    call()
    repeats: list[dict[str, _Costs]] = []
    for _ in range(_REPEATS):
        with _Recording(mark) as recording:
            call()
        if on_gpu:
            torch.cuda.synchronize(device)
        costs: dict[str, _Costs] = {}
        for signature, moved, flops, begin, end in recording.seen:
            cost = costs.setdefault(signature, _Costs())
            cost.calls, cost.bytes, cost.flops = cost.calls + 1, cost.bytes + moved, cost.flops + flops
            cost.seconds += begin.elapsed_time(end) / 1000 if on_gpu else end - begin
        repeats.append(costs)
    found = []
    for signature, cost in repeats[0].items():
        seconds = min(costs[signature].seconds for costs in repeats if signature in costs)
        found.append(
            OperatorCost(
                signature=signature, calls=cost.calls, bytes=cost.bytes, flops=cost.flops, seconds=seconds
            )
        )
    return sorted(found, key=lambda cost: -(cost.seconds or 0.0))


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of different tensors."""
    different = {(t.data_ptr(), t.shape, t.stride()): t.numel() * t.element_size() for t in tensors}
    return sum(different.values())


def _signature(func: Any, args: Any, kwargs: Any, result: Any) -> str:
    given = [*map(_word, args), *(f"{name}={_word(value)}" for name, value in kwargs.items())]
    made = _word(result)
    text = f"{func._overloadpacket}({', '.join(given)}) -> {made}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - len(made) - 7]} …) -> {made}"


def _word(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
