"""Where a worker's tensors lie: the host's memory, or a GPU's."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kernelbench.evaluator.layout import Arena, SlotLayout


class NoRoom(Exception):  # noqa: N818
    """Outputs do not fit in the memory that is there for them."""


class Place(Protocol):
    device: torch.device
    slots: list[list[torch.Tensor]]  # the tensors of each slot of inputs

    def clock(self) -> Callable[[], float]:
        """Starts the device's own clock; called after `settled`, what it gives says how many seconds passed.

        NaN where there is no such clock. It stops when the outputs are settled.
        """

    def settled(self, calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """The outputs of calls, once all that was launched has ended, where the judge can find them."""

    def address(self, tensor: torch.Tensor) -> int:
        """What the judge finds the tensor's first byte by."""


class Host:
    """Inputs are a private mapping of what all workers share; outputs are read where they are."""

    device = torch.device("cpu")

    def __init__(self, layout: SlotLayout, told: dict[str, Any], fds: Sequence[int]) -> None:
        (inputs_fd,) = fds
        arena = Arena(inputs_fd, layout.slot_bytes * told["slots"], private=True)
        arena.close()  # the mapping stays
        self.slots = [layout.views(arena, slot) for slot in range(told["slots"])]

    def clock(self) -> Callable[[], float]:
        return lambda: math.nan

    def settled(self, calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        return calls

    def address(self, tensor: torch.Tensor) -> int:
        return torch.Tensor.data_ptr(tensor)


class Gpu:
    """Inputs are the worker's own copy; torch's tensors come from a heap that the oracle has mapped too."""

    def __init__(self, layout: SlotLayout, told: dict[str, Any], fds: Sequence[int]) -> None:
        from kernelbench.evaluator.device import DeviceArena
        from kernelbench.evaluator.native import library
        from kernelbench.jit.library import path_of

        inputs_fd, heap_fd = fds
        self.device = torch.device(told["device"])
        torch.zeros(1, device=self.device)  # the context
        inputs = DeviceArena.attach(inputs_fd, told["inputs_bytes"], self.device)
        self.slots = [layout.views(inputs, slot) for slot in range(told["slots"])]
        self.heap = DeviceArena.attach(heap_fd, told["heap_bytes"], self.device)
        native = library("heap")
        assert native is not None, "a GPU worker needs a C++ compiler"
        native.heap_open(int(self.heap.address), self.heap.size)
        path = str(path_of(native))
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "heap_allocate", "heap_release")
        self._pool = torch.cuda.MemPool(allocator.allocator())
        self._end = torch.cuda.Event(enable_timing=True)
        self._scope: Any = None
        self._enter()
        self._leave_while_capturing()

    def clock(self) -> Callable[[], float]:
        start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        start.record()
        return lambda: start.elapsed_time(self._end) / 1000

    def settled(self, calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        self._end.record()
        torch.cuda.synchronize(self.device)
        moved = [[self._inside(output) for output in outputs] for outputs in calls]
        torch.cuda.synchronize(self.device)
        return moved

    def address(self, tensor: torch.Tensor) -> int:
        return torch.Tensor.data_ptr(tensor) - int(self.heap.address)

    def _inside(self, output: torch.Tensor) -> torch.Tensor:
        """The output, or a copy where it is not in the heap: of CuPy's, say, or of a CUDA graph."""
        if 0 <= self.address(output) < self.heap.size:
            return output
        copy = output.clone(memory_format=torch.contiguous_format)
        if output.numel() and not 0 <= self.address(copy) < self.heap.size:
            raise NoRoom("there is no room left for outputs on the GPU")
        return copy

    def _enter(self) -> None:
        self._scope = torch.cuda.use_mem_pool(self._pool, self.device)
        self._scope.__enter__()

    def _leave_while_capturing(self) -> None:
        """What a CUDA graph allocates must stay its own: the pool would give it to others again."""
        begin, end = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            self._scope.__exit__(None, None, None)
            begin(graph, *args, **kwargs)

        def capture_end(graph: Any) -> None:
            end(graph)
            self._enter()

        torch.cuda.CUDAGraph.capture_begin = capture_begin
        torch.cuda.CUDAGraph.capture_end = capture_end


def place_of(layout: SlotLayout, told: dict[str, Any], fds: Sequence[int]) -> Place:
    return Gpu(layout, told, fds) if "device" in told else Host(layout, told, fds)
