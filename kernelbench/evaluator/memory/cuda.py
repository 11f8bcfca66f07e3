"""A GPU's memory behind descriptors that can be passed between processes, and what the oracle does with it.

Legacy CUDA IPC does not cross PID namespaces and is bound to the exporting process; the driver's virtual
memory management does neither: who holds an imported handle keeps the memory, also when the process that
wrote to it was killed. https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from kernelwright.kernelbench.evaluator.memory.layout import GRANULE, SlotLayout, TensorLayout, rounded

Created = TypeVar("Created")
# Chosen by hand.
_PROBES = 5  # probes in a row, of which the median time counts
_PROBE_BYTES = 4 << 20  # bytes that a probe writes
_TEARDOWN_S = 10.0  # seconds in which the memory of a killed process is freed
_STAGED_BYTES = 256 << 20  # of inputs that are copied at a time
_IDLE_BYTES = 1 << 30  # that torch's allocator may keep without need


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

    def __init__(self, handle: Any, size: int, device: torch.device, behind: int = 0) -> None:
        """`handle`: of physical memory of `size` bytes, a multiple of GRANULE; see `create` and `attach`.

        `behind`: bytes, a multiple of it, that more memory may have later, at the addresses that follow.
        """
        from cuda.bindings import driver

        self.size = 0
        self._device, self._pieces = device, list[tuple[Any, int]]()
        self._reserved = size + behind
        (self.address,) = _call(driver.cuMemAddressReserve, self._reserved, 0, 0, 0)
        self._map(handle, size)
        super().__init__(torch.as_tensor(_Raw(int(self.address), self._reserved), device=device))

    def _map(self, handle: Any, size: int) -> None:
        """Map memory behind what is there."""
        from cuda.bindings import driver

        address = int(self.address) + self.size
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self._device.index or 0
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _call(driver.cuMemMap, address, size, 0, handle, 0)
        _call(driver.cuMemSetAccess, address, size, [access], 1)
        self._pieces.append((handle, size))
        self.size += size

    @classmethod
    def create(cls, size: int, device: torch.device, behind: int = 0) -> "DeviceArena":
        """Create memory of at least `size` bytes."""
        size = rounded(max(1, size), GRANULE)
        return cls(_created(size, device), size, device, behind)

    @classmethod
    def attach(cls, fd: int, size: int, device: torch.device, behind: int = 0) -> "DeviceArena":
        """Memory that another process exported as `fd`, which is closed."""
        return cls(_imported(fd), size, device, behind)

    def create_behind(self, size: int) -> None:
        """Create the memory behind, of `size` bytes."""
        self._map(_created(size, self._device), size)

    def attach_behind(self, fd: int, size: int) -> None:
        """Attach the memory behind, which another process exported as `fd`; that is closed."""
        self._map(_imported(fd), size)

    def export(self, piece: int = 0) -> int:
        """Return a descriptor for another process to `attach`: of this memory, or of that behind it (1)."""
        from cuda.bindings import driver

        (fd,) = _call(driver.cuMemExportToShareableHandle, self._pieces[piece][0], _posix(), 0)
        return int(fd)

    def close(self) -> None:
        """Release the memory; no tensor that views it may be used afterwards."""
        from cuda.bindings import driver

        address = int(self.address)
        for handle, size in self._pieces:
            _call(driver.cuMemUnmap, address, size)
            _call(driver.cuMemRelease, handle)
            address += size
        _call(driver.cuMemAddressFree, self.address, self._reserved)


def _created(size: int, device: torch.device) -> Any:
    """Handle of new physical memory."""
    from cuda.bindings import driver

    kind = driver.CUmemAllocationProp()
    kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind.location.id = device.index or 0
    kind.requestedHandleTypes = _posix()
    (handle,) = _call(driver.cuMemCreate, size, kind, 0)
    return handle


def _imported(fd: int) -> Any:
    """Handle of memory that another process exported as `fd`, which is closed."""
    from cuda.bindings import driver

    try:
        (handle,) = _call(driver.cuMemImportFromShareableHandle, fd, _posix())
    finally:
        os.close(fd)
    return handle


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
    inputs: DeviceArena
    heap: DeviceArena  # where the worker's tensors lie; behind it, copies of outputs from elsewhere


class MemoryExporter:
    """GPU memory of the oracle: the inputs, a window on them for candidates, and a heap for each worker.

    The kernels of a stopped process run on, and can wait for a value in memory to change while the device is
    idle. So who can see what, and when, rests on what is mapped where:

    - *The master copy* of the inputs is mapped by the oracle and by baselines, which run the code that the
      oracle itself runs. A candidate never maps it: what is drawn while candidates are stopped, and what a
      baseline is timed on, changes nothing that a candidate's kernels could wait for, read or overwrite.
    - *The window*, one for all candidates of a session, gets the inputs of a block just before that block, in
      blocks of columns, so that no slot is complete before all are (`deliver`). The probe right after that
      shows kernels that waited for them. Baselines get theirs, which are there, copied onto themselves, so
      that both find the same in the caches.
    - Two processes of a candidate share the window. What one left there is gone when the next one is lent it
      (`describe`), and a stopped one's kernels that wake as the other gets its inputs are seen by that probe,
      in the candidate's own block.
    - After a block the window is compared with the master copy (`unchanged`), which no candidate writes to.
    - *Heaps* are a worker's own, and the oracle's. Of a block's outputs, what will be compared is copied when
      the device is idle, before anything that its kernels could wait for changes (`hold`).
    """

    def __init__(self, layout: SlotLayout, slots: int, device: torch.device, cache_bytes: int) -> None:
        """`cache_bytes`: of the L2 cache."""
        self.layout, self.device = layout, device
        self.size = rounded(max(1, layout.slot_bytes * slots), GRANULE)
        self.master = self._created(self.size)
        self.master.bytes.zero_()
        self.window = self._created(self.size)
        self.slots = [layout.views(self.master, slot) for slot in range(slots)]
        self._loans: dict[int, _Loan] = {}
        self.held: dict[int, DeviceBytes] = {}  # by worker, the outputs of its last block
        # Where there is memory for one call alone, there is none to keep outputs in until they are compared.
        self._held_on = torch.device("cpu") if slots == 1 else device
        self._eviction = torch.ones(2 * cache_bytes // 4, dtype=torch.int32, device=device)
        self._probe = torch.zeros(_PROBE_BYTES, dtype=torch.uint8, device=device)

    def describe(self, number: int, heap_bytes: int, aside_bytes: int, trusted: bool) -> dict[str, Any]:
        """Return the "fds" of the inputs and the heap of a new worker; the sender closes them.

        `aside_bytes`: that it may have behind its heap, see `lend`. `trusted`: it runs the reference.
        """
        inputs = self.master if trusted else self.window
        loan = _Loan(inputs, self._created(heap_bytes, aside_bytes))
        if not trusted:
            self.window.bytes.copy_(self.master.bytes)
        self._loans[number] = loan
        self._synchronize()
        return {"inputs_bytes": self.size, "fds": [inputs.export(), loan.heap.export()]}

    def taken_bytes(self) -> int:
        """Memory of the device that this process has taken, for itself and for workers."""
        heaps = sum(loan.heap.size for loan in self._loans.values())
        return self.master.size + self.window.size + heaps + torch.cuda.memory_reserved(self.device)

    def free_bytes(self) -> int:
        """Memory of the device that no process has taken."""
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def lend(self, number: int, size: int) -> dict[str, Any]:
        """Return the "fds" of more memory behind a worker's heap; the sender closes them."""
        heap = self._loans[number].heap
        self._with_patience(lambda: heap.create_behind(size))
        return {"fds": [heap.export(1)]}

    def _created(self, size: int, behind: int = 0) -> DeviceArena:
        return self._with_patience(lambda: DeviceArena.create(size, self.device, behind))

    def _with_patience(self, create: Callable[[], Created]) -> Created:
        """Create memory of the device; the driver takes a moment to free what a killed process had."""
        deadline = time.monotonic() + _TEARDOWN_S
        while True:
            try:
                return create()
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
        loan.heap.close()

    def deliver(self, number: int, slots: Sequence[int], flush: bool) -> float:
        """Copy the master's inputs in these slots to a worker; return the time of a probe after that.

        A stopped process may have kernels waiting for inputs to appear. So they appear just before its block
        begins, and the probe shows what then runs.
        """
        if slots and self.layout.slot_bytes:
            rows = torch.tensor(slots, device=self.device)
            master, theirs = self._by_slot(self.master), self._by_slot(self._loans[number].inputs)
            for columns in _parts(master.shape[1], _STAGED_BYTES // (8 * len(slots))):
                theirs[:, columns].index_copy_(0, rows, master[:, columns][rows])
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _IDLE_BYTES:
            torch.cuda.empty_cache()  # the workers' memory is the same device's
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
        if held is None or not size <= held.bytes.numel() <= 2 * size + _PROBE_BYTES:
            self.held.pop(number, None)  # before there is another one
            held = self.held[number] = DeviceBytes(torch.empty(size, dtype=torch.uint8, device=self._held_on))
        for begin, length, to in pieces:
            held.bytes[to : to + length].copy_(heap[begin : begin + length])
        self._synchronize()

    def unchanged(self, number: int, slots: Sequence[int]) -> bool:
        """Return True if the worker's inputs in these slots are still the master's."""
        if not self.layout.slot_bytes:
            return True
        theirs, ours = self._by_slot(self._loans[number].inputs), self._by_slot(self.master)
        parts = list(_parts(ours.shape[1], _STAGED_BYTES))
        return all(torch.equal(theirs[slot, part], ours[slot, part]) for slot in slots for part in parts)

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


def _parts(size: int, most: int) -> Iterator[slice]:
    """Slices of a dimension, of at most `most` each."""
    most = max(1, most)
    return (slice(begin, begin + most) for begin in range(0, size, most))
