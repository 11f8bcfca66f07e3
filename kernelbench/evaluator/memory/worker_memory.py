"""Memory of a worker's tensors: the host's, or a GPU's."""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.evaluator.memory.layout import (
    DEVICE_ALIGNMENT,
    Arena,
    SlotLayout,
    TensorLayout,
    rounded,
)
from kernelwright.kernelbench.jit.library import path_of


@cache
def heap_library() -> jit.CppLibrary:
    """heap.cpp, built. First called in the fork server: a candidate may not read the evaluator."""
    return jit.compile_cpp(Path(__file__).with_name("heap.cpp").read_text())


class NoRoom(Exception):  # noqa: N818
    """Outputs lie where the referee cannot see them, and there is no room for copies."""


class WorkerMemory(Protocol):
    device: torch.device
    slots: list[list[torch.Tensor]]  # the tensors of each slot of inputs

    def clock(self) -> Callable[[], float]:
        """Start the device's own clock.

        What it gives is called after `finish`: it waits for all that was launched, and returns the seconds
        until the outputs were there; NaN where there is no such clock.
        """

    def finish(self, calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Return the outputs of calls where the referee can find them once `clock` has waited for them."""

    def borrow(self, size: int, fds: Sequence[int]) -> None:
        """Take more memory, of `size` bytes, for outputs that lie where the referee cannot see them."""

    def reclaim(self) -> None:
        """Tidy up between blocks, once outputs have been released."""

    def address(self, tensor: torch.Tensor) -> int:
        """Address by which the referee finds the tensor's first byte."""


class CpuMemory:
    """Inputs are a private mapping of what all workers share; outputs are read where they are."""

    device = torch.device("cpu")

    def __init__(self, layout: SlotLayout, mapping: dict[str, Any], fds: Sequence[int]) -> None:
        (inputs_fd,) = fds
        arena = Arena(inputs_fd, layout.slot_bytes * mapping["slots"], private=True)
        os.close(inputs_fd)  # the mapping stays
        self.slots = [layout.views(arena, slot) for slot in range(mapping["slots"])]

    def clock(self) -> Callable[[], float]:
        return lambda: math.nan

    def finish(self, calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        return calls

    def borrow(self, size: int, fds: Sequence[int]) -> None:
        pass

    def reclaim(self) -> None:
        pass

    def address(self, tensor: torch.Tensor) -> int:
        return torch.Tensor.data_ptr(tensor)


class Gpu:
    """Inputs lie in the oracle's memory; torch's tensors come from a heap that the oracle has mapped too.

    Behind the heap comes room for copies of outputs that did not come from it, CuPy's, say, or those of a
    CUDA graph, once the worker has said that it has such outputs (`NoRoom`).
    """

    def __init__(self, layout: SlotLayout, mapping: dict[str, Any], fds: Sequence[int]) -> None:
        from kernelwright.kernelbench.evaluator.memory.cuda import DeviceArena

        inputs_fd, heap_fd = fds
        self.device = torch.device(mapping["device"])
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)  # the context
        inputs = DeviceArena.attach(inputs_fd, mapping["inputs_bytes"], self.device)
        self.slots = [layout.views(inputs, slot) for slot in range(mapping["slots"])]
        self._aside, aside_bytes = mapping["heap_bytes"], mapping["aside_bytes"]
        self._memory = DeviceArena.attach(heap_fd, self._aside, self.device, behind=aside_bytes)
        self._begin = int(self._memory.address)
        self._end = self._begin + self._aside + aside_bytes
        self._used = self._aside
        native = heap_library()
        native.heap_open(self._begin, self._aside)
        # Kept: in some releases the pool holds no reference.
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(path_of(native)), "heap_allocate", "heap_release"
        )
        self._pool = torch.cuda.MemPool(self._allocator.allocator())
        self._stop = torch.cuda.Event(enable_timing=True)
        self._scope: Any = None
        self._leave_while_capturing()

    def borrow(self, size: int, fds: Sequence[int]) -> None:
        (aside_fd,) = fds
        self._memory.attach_behind(aside_fd, size)

    def clock(self) -> Callable[[], float]:
        start = torch.cuda.Event(enable_timing=True)
        start.record()

        def stop() -> float:
            torch.cuda.synchronize(self.device)
            return float(start.elapsed_time(self._stop)) / 1000

        return stop

    def finish(self, calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        self._stop.record()
        if all(self._is_inside(output) for outputs in calls for output in outputs):
            return calls
        torch.cuda.synchronize(self.device)  # they may come from another stream
        self._used = self._aside
        return [[self._inside(output) for output in outputs] for outputs in calls]

    def reclaim(self) -> None:
        """Free memory, between blocks, that waits for events of other streams.

        torch's allocator puts that off for as long as allocations go to a pool. From the first time on they
        do; before, a model has taken what it keeps.
        """
        torch.cuda.synchronize(self.device)
        self._leave()
        for _ in range(2):  # the first one records the events, the second sees that they have passed
            torch.empty(1, device=self.device)
            torch.cuda.synchronize(self.device)
        self._enter()

    def address(self, tensor: torch.Tensor) -> int:
        return torch.Tensor.data_ptr(tensor) - self._begin if tensor.numel() else 0

    def _inside(self, output: torch.Tensor) -> torch.Tensor:
        """Return the output, or a copy where nobody else could see it."""
        if self._is_inside(output):
            return output
        dense = TensorLayout.of(output.contiguous())
        after = self._used + rounded(dense.span_bytes, DEVICE_ALIGNMENT)
        if after > self._memory.size:
            raise NoRoom("its outputs do not lie in memory that torch has allocated")
        copy = self._memory.tensor(dense, self._used)
        copy.copy_(output)
        self._used = after
        return copy

    def _is_inside(self, output: torch.Tensor) -> bool:
        return self._begin <= torch.Tensor.data_ptr(output) < self._end or not output.numel()

    def _enter(self) -> None:
        self._scope = torch.cuda.use_mem_pool(self._pool, self.device)
        self._scope.__enter__()

    def _leave(self) -> bool:
        """Leave the scope; return False if it was not entered."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(None, None, None)
        return scope is not None

    def _leave_while_capturing(self) -> None:
        """Leave while a CUDA graph is captured: its memory must stay its own, and the pool would reuse it."""
        begin, end = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end
        inside = False

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal inside
            inside = self._leave()
            try:
                begin(graph, *args, **kwargs)
            except BaseException:
                restore()
                raise

        def capture_end(graph: Any) -> None:
            try:
                end(graph)
            finally:
                restore()

        def restore() -> None:
            if inside and self._scope is None:
                self._enter()

        torch.cuda.CUDAGraph.capture_begin = capture_begin
        torch.cuda.CUDAGraph.capture_end = capture_end


def memory_of(layout: SlotLayout, mapping: dict[str, Any], fds: Sequence[int]) -> WorkerMemory:
    return Gpu(layout, mapping, fds) if "device" in mapping else CpuMemory(layout, mapping, fds)
