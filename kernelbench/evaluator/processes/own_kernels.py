"""Share of a forward call that is spent in the candidate's own kernels rather than in torch's operators.

Measured in the candidate's process, so it is a report and not evidence.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.reference.draws import CPU
from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

# Operators that make or reshape tensors without computing anything.
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "view", "_unsafe_view", "reshape", "as_strided",
         "transpose", "permute", "t", "slice", "select", "unsqueeze", "squeeze", "expand", "detach", "alias",
         "unbind", "split", "split_with_sizes", "chunk"}  # fmt: skip

_FEWEST, _ENOUGH_S = 3, 0.5  # calls, and the time after which no further one is made
_LARGEST = 2**26  # bytes of the largest output whose release is timed


class ShareUnknown(Exception):  # noqa: N818 - what happened
    """The share of a call in kernels of its own cannot be told; `str()` says why."""


class _OperatorClock(OperatorMode):
    """Sums the time spent inside ATen operators, from whichever language they were called.

    `allocated`: how many of them returned a new tensor of so many bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.allocated: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        end = time.perf_counter()
        computes = func._opname not in _FREE
        if func.namespace in ("aten", "prims") and computes:
            self.seconds += end - start
        new = computes and isinstance(result, torch.Tensor) and not any(result is arg for arg in args)
        self.allocated[result.nbytes if new else 0] += 1
        return result


def _around_s(nbytes: int) -> float:
    """Seconds outside an operator with an output of `nbytes`: to dispatch it and to release its output."""
    size = min(nbytes, _LARGEST)
    outside = []
    for _ in range(5):
        with _OperatorClock() as clock:
            start = time.perf_counter()
            torch.full((size,), 1, dtype=torch.uint8)
            total = time.perf_counter() - start
        outside.append(total - clock.seconds)
    return sorted(outside)[2] * max(1.0, nbytes / _LARGEST)


def own_kernel_share(call: Callable[[], object], device: torch.device = CPU, repeats: int = 15) -> float:
    """Return the share, 0 to 1, of `call`'s time outside torch's own operators. Raises ShareUnknown.

    On the CPU by the least times of `repeats` calls, of fewer where calls are slow. What it costs to call an
    operator and to release its output counts as neither; other Python code counts as the candidate's own.
    On a GPU the share of the time of kernels, by torch's profiler.
    """
    if device.type == "cuda":
        return _own_gpu_share(call, device)
    own: list[float] = []
    operators: list[float] = []
    around: dict[int, float] = {}
    begun = time.perf_counter()
    with torch.no_grad():
        while len(own) < repeats and (len(own) < _FEWEST or time.perf_counter() - begun < _ENOUGH_S):
            with _OperatorClock() as clock:
                start = time.perf_counter()
                call()
                total = time.perf_counter() - start
            for nbytes in clock.allocated.keys() - around:
                around[nbytes] = _around_s(nbytes)
            outside = total - clock.seconds
            own.append(outside - sum(around[nbytes] * times for nbytes, times in clock.allocated.items()))
            operators.append(clock.seconds)
    least = max(0.0, min(own))
    return least / (least + min(operators)) if least > 0 else 0.0


def _own_gpu_share(call: Callable[[], object], device: torch.device) -> float:
    """Return the share of the GPU's time that is not of kernels that an ATen operator launched."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize(device)
    for _ in range(2):  # CUPTI starts within the first, which may miss the kernels
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize(device)
    return share_of_events(profiler.events() or ())


def share_of_events(events: Iterable[Any]) -> float:
    """Return the share of the time of all kernels in a profile that is not of those ATen operators launched.

    `events`: torch.autograd.profiler_util.FunctionEvent, times in microseconds. Raises ShareUnknown if there
    are no kernels, or if a CUDA graph launched some: its contents are not in the profile.
    """
    total = operators = 0.0
    devices: Counter[str] = Counter()
    for event in events:
        devices[str(event.device_type).rpartition(".")[2]] += 1
        if event.name.startswith("cudaGraphLaunch"):
            raise ShareUnknown("it launches a CUDA graph, whose kernels torch's profiler does not name")
        # A device type that comes from C++ equals the constant, and is another object.
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            total += event.device_time_total
        elif event.name.startswith("aten::"):  # an operator's own kernels, without those of what it calls
            operators += event.self_device_time_total
    if total <= 0:
        counts = ", ".join(f"{count} on {device}" for device, count in devices.items()) or "none at all"
        raise ShareUnknown(f"torch's profiler recorded no kernel on the GPU (events: {counts})")
    return max(0.0, 1.0 - operators / total)
