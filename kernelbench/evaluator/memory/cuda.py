"""A GPU's memory behind descriptors that can be passed between processes, and what the oracle does with it.

Legacy CUDA IPC does not cross PID namespaces and is bound to the exporting process; the driver's virtual
memory management does neither: who holds an imported handle keeps the memory, also when the process that
wrote to it was killed. https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.memory.layout import GRANULE, SlotLayout, TensorLayout, rounded

# Chosen by hand.
_PROBES = 5  # probes in a row, of which the median time counts
_PROBE_BYTES = 4 << 20  # bytes that a probe writes
_TEARDOWN_S = 10.0  # seconds in which the memory of a killed process is freed


class DeviceError(Exception):
    """A call of the CUDA driver failed."""


class DeviceBytes:
    """Memory that tensors can be looked at in: a contiguous tensor of bytes, on any device."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.bytes = memory

    @classmethod
    def make(cls, size: int, device: torch.device) -> "DeviceBytes":
        return cls(torch.zeros(size, dtype=torch.uint8, device=device))

    def tensor(self, layout: TensorLayout, offset: int) -> torch.Tensor:
        """Return the tensor of this layout at `offset` bytes, sharing the memory."""
        dtype = getattr(torch, layout.dtype)
        if 0 in layout.shape:
            return torch.empty(layout.shape, dtype=dtype, device=self.bytes.device)
        flat = self.bytes[offset : offset + layout.span_bytes].view(dtype)
        return flat.as_strided(layout.shape, layout.strides)


class DeviceArena(DeviceBytes):
    """Memory of a GPU, mapped into this process; the counterpart of `layout.Arena`.

    Raises DeviceError. CUDA must have been initialized in this thread (torch does it).
    """

    def __init__(self, handle: Any, size: int, device: torch.device) -> None:
        """`handle`: of physical memory of `size` bytes, a multiple of GRANULE; see `create` and `attach`."""
        from cuda.bindings import driver

        self._handle, self.size = handle, size
        (self.address,) = _call(driver.cuMemAddressReserve, size, 0, 0, 0)
        _call(driver.cuMemMap, self.address, size, 0, handle, 0)
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device.index or 0
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _call(driver.cuMemSetAccess, self.address, size, [access], 1)
        super().__init__(torch.as_tensor(_Raw(int(self.address), size), device=device))

    @classmethod
    def create(cls, size: int, device: torch.device) -> "DeviceArena":
        """Create memory of at least `size` bytes."""
        from cuda.bindings import driver

        kind = driver.CUmemAllocationProp()
        kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        kind.location.id = device.index or 0
        kind.requestedHandleTypes = _posix()
        size = rounded(max(1, size), GRANULE)
        (handle,) = _call(driver.cuMemCreate, size, kind, 0)
        return cls(handle, size, device)

    @classmethod
    def attach(cls, fd: int, size: int, device: torch.device) -> "DeviceArena":
        """Memory that another process exported as `fd`, which is closed."""
        from cuda.bindings import driver

        try:
            (handle,) = _call(driver.cuMemImportFromShareableHandle, fd, _posix())
        finally:
            os.close(fd)
        return cls(handle, size, device)

    def export(self) -> int:
        """Return a descriptor for another process to `attach`."""
        from cuda.bindings import driver

        (fd,) = _call(driver.cuMemExportToShareableHandle, self._handle, _posix(), 0)
        return int(fd)

    def close(self) -> None:
        """Release the memory; no tensor that views it may be used afterwards."""
        from cuda.bindings import driver

        _call(driver.cuMemUnmap, self.address, self.size)
        _call(driver.cuMemRelease, self._handle)
        _call(driver.cuMemAddressFree, self.address, self.size)


class _Raw:
    """Bytes of a GPU, for torch to see."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _posix() -> Any:
    from cuda.bindings import driver

    return driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _call(function: Any, *arguments: Any) -> tuple[Any, ...]:
    error, *results = function(*arguments)
    if int(error) != 0:
        raise DeviceError(f"{function.__name__}: {getattr(error, 'name', error)}")
    return tuple(results)


@dataclass
class _Loan:
    inputs: DeviceArena  # the worker's own copy of the master's
    heap: DeviceArena  # where the worker's tensors lie, outputs among them


class MemoryExporter:
    """GPU memory of the oracle: a master copy of the inputs, and for each worker a copy and a heap.

    A stopped process may have kernels that run on. So no worker's memory is another's, and the outputs of a
    block are copied to where it cannot write.
    """

    def __init__(self, layout: SlotLayout, slots: int, device: torch.device, cache_bytes: int) -> None:
        """`cache_bytes`: of the L2 cache."""
        self.layout, self.device = layout, device
        self.size = rounded(max(1, layout.slot_bytes * slots), GRANULE)
        self.master = DeviceBytes.make(self.size, device)
        self.slots = [layout.views(self.master, slot) for slot in range(slots)]
        self._loans: dict[int, _Loan] = {}
        self.held: dict[int, DeviceBytes] = {}  # by worker, the outputs of its last block
        self._eviction = torch.ones(2 * cache_bytes // 4, dtype=torch.int32, device=device)
        self._probe = torch.zeros(_PROBE_BYTES, dtype=torch.uint8, device=device)

    def describe(self, number: int, heap_bytes: int) -> dict[str, Any]:
        """Return the "fds" of the inputs and the heap of a new worker; the sender closes them."""
        inputs = self._created(self.size)
        try:
            loan = _Loan(inputs, self._created(heap_bytes))
        except DeviceError:
            inputs.close()
            raise
        loan.inputs.bytes.copy_(self.master.bytes)
        self._loans[number] = loan
        self._synchronize()
        return {"inputs_bytes": self.size, "fds": [loan.inputs.export(), loan.heap.export()]}

    def taken_bytes(self) -> int:
        """Memory of the device that this process has taken, for itself and for workers."""
        lent = sum(loan.inputs.size + loan.heap.size for loan in self._loans.values())
        return lent + torch.cuda.memory_reserved(self.device)

    def free_bytes(self) -> int:
        """Memory of the device that no process has taken."""
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def _created(self, size: int) -> DeviceArena:
        """Memory of the device; the driver takes a moment to free what a killed process had."""
        deadline = time.monotonic() + _TEARDOWN_S
        while True:
            try:
                return DeviceArena.create(size, self.device)
            except DeviceError as error:
                if "OUT_OF_MEMORY" not in str(error) or time.monotonic() > deadline:
                    raise
                torch.cuda.empty_cache()
                time.sleep(0.1)

    def take_back(self, number: int) -> None:
        """Free the memory of a worker that has ended."""
        loan = self._loans.pop(number)
        self.held.pop(number, None)
        self._synchronize()
        loan.inputs.close()
        loan.heap.close()

    def deliver(self, number: int, slots: Sequence[int], flush: bool) -> float:
        """Copy the master's inputs in these slots to a worker; return the time of a probe after that.

        A stopped process may have kernels waiting for inputs to appear. So they appear just before its block
        begins, and the probe shows what then runs.
        """
        if slots and self.layout.slot_bytes:
            rows = torch.tensor(slots, device=self.device)
            fresh = self._by_slot(self.master)[rows]
            self._synchronize()
            self._by_slot(self._loans[number].inputs).index_copy_(0, rows, fresh)  # all of them at once
        if flush:
            self.flush()
        self._synchronize()
        return self.probe_s()

    def _by_slot(self, memory: DeviceBytes) -> torch.Tensor:
        """View inputs as int64 words, a row for every slot; slots are whole pages."""
        used = memory.bytes[: len(self.slots) * self.layout.slot_bytes].view(torch.int64)
        return used.view(len(self.slots), -1)

    def hold(self, number: int, pieces: Sequence[Sequence[int]], size: int) -> None:
        """Copy (from, length, to) pieces of a worker's heap to `size` bytes that it cannot reach."""
        heap = self._loans[number].heap.bytes
        held = self.held.get(number)
        if held is None or held.bytes.numel() < size:
            self.held.pop(number, None)  # before there is a larger one
            held = self.held[number] = DeviceBytes.make(size, self.device)
        for begin, length, to in pieces:
            held.bytes[to : to + length].copy_(heap[begin : begin + length])
        self._synchronize()

    def unchanged(self, number: int, slots: Sequence[int]) -> bool:
        """Return True if the worker's inputs in these slots are still the master's."""
        if not self.layout.slot_bytes:
            return True
        theirs, ours = self._by_slot(self._loans[number].inputs), self._by_slot(self.master)
        return all(torch.equal(theirs[slot], ours[slot]) for slot in slots)

    def flush(self) -> None:
        """Put everything else out of the L2 cache, what was asked to stay there too."""
        from cuda.bindings import driver

        try:
            _call(driver.cuCtxResetPersistingL2Cache)
        except DeviceError as error:
            if "NOT_SUPPORTED" not in str(error):  # before Ampere, where nothing can be asked to stay
                raise
        self._eviction.add_(1)
        self._synchronize()

    def probe_s(self, probes: int = _PROBES) -> float:
        """Seconds that a small kernel takes, the median of some: many times more while others' kernels run.

        Contexts of different processes take turns on a GPU, unless MPS runs them together.
        """
        times = []
        for _ in range(probes):
            started = time.perf_counter()
            self._probe.add_(1)
            self._synchronize()
            times.append(time.perf_counter() - started)
        return sorted(times)[probes // 2]

    def _synchronize(self) -> None:
        torch.cuda.synchronize(self.device)
