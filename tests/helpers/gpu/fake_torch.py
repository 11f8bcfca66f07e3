"""torch with a GPU whose memory is the host's and whose driver is the tests' own.

Importing it, as `fake_gpu` does, loads that driver and makes torch pretend for the rest of the process. A
computing call of torch takes its time on the CPU, and OPERATOR_NS on the device's timeline beside.
"""

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu, properties
from kernelwright.kernelbench.evaluator.memory import cuda as device_memory
from kernelwright.kernelbench.evaluator.timing import ceilings
from tests.helpers.gpu.h100 import CEILINGS

OPERATOR_NS = 2000
CHIP = "sm_90"
_WHOLE = 2 << 20  # bytes, of which memory that is taken from a pool is a multiple; smaller: a power of two

_library = ctypes.CDLL(os.environ["FAKE_CUDA"], mode=ctypes.RTLD_GLOBAL)
_work = _library.fake_work
_work.argtypes, _work.restype = [ctypes.c_int64], None


def busy(us: float) -> None:
    """Launch a kernel that takes so long and computes nothing."""
    _work(int(1000 * us))


def copied(tensor: torch.Tensor, us: float) -> torch.Tensor:
    """Launch a kernel that takes so long and copies a tensor; it takes the host as little as it may."""
    with torch._C.DisableTorchFunction():
        made = tensor.clone()
        made = made if Pool.current is None else Pool.current.holding(made)
    busy(us)
    return made


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Have results in the block come from elsewhere than torch's pool, as a CUDA graph's or CuPy's do."""
    before, Pool.current = Pool.current, None
    try:
        yield
    finally:
        Pool.current = before


def lose_context(error: int = 700) -> None:
    """Have every later call of the driver fail, as after an illegal access."""
    _library.fake_lose(error)


def _driver(name: str, *arguments: Any) -> Any:
    """Call the driver through cuda-bindings, as torch does; a failure is torch's."""
    from cuda.bindings import driver

    error, *results = getattr(driver, name)(*arguments)
    if int(error):
        kind = torch.OutOfMemoryError if int(error) == 2 else torch.AcceleratorError
        raise kind(f"CUDA error: {driver.cuGetErrorString(error)[1].decode()} ({name})")
    return results[0] if results else None


def _count() -> int:
    """Devices that this process sees; 0 where the driver fails."""
    from cuda.bindings import driver

    error, count = driver.cuDeviceGetCount()
    return 0 if int(error) else int(count)


def _memory_info(_: Any = None) -> tuple[int, int]:
    from cuda.bindings import driver

    set_device(0)
    error, free, total = driver.cuMemGetInfo()
    return (0, 0) if int(error) else (int(free), int(total))


def set_device(_: Any) -> None:
    if _driver("cuCtxGetCurrent") is None or not int(_driver("cuCtxGetCurrent")):
        _driver("cuInit", 0)
        _driver("cuCtxSetCurrent", _driver("cuDevicePrimaryCtxRetain", 0))


def synchronize(_: Any = None) -> None:
    set_device(0)
    _driver("cuCtxSynchronize")


class Event:
    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        set_device(0)
        self.event = _driver("cuEventCreate", 0)

    def record(self, _: Any = None) -> None:
        _driver("cuEventRecord", self.event, 0)

    def synchronize(self) -> None:
        _driver("cuEventSynchronize", self.event)

    def elapsed_time(self, end: "Event") -> float:
        return float(_driver("cuEventElapsedTime", self.event, end.event))


class CUDAGraph:
    """A graph that calls again what was called while it was captured."""

    capturing: "CUDAGraph | None" = None

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def capture_begin(self, *_: Any, **__: Any) -> None:
        CUDAGraph.capturing = self

    def capture_end(self) -> None:
        CUDAGraph.capturing = None

    def replay(self) -> None:
        for call, args, kwargs, made in self.calls:
            again = call(*args, **kwargs)
            for to, result in zip(_tensors(made), _tensors(again), strict=True):
                if to.data_ptr() != result.data_ptr():
                    to.copy_(result)


@contextlib.contextmanager
def graph(captured: CUDAGraph, *_: Any, **__: Any) -> Iterator[None]:
    captured.capture_begin()
    try:
        yield
    finally:
        captured.capture_end()


class Allocator:
    """What a torch.cuda.MemPool takes its memory from: a function of a library."""

    def __init__(self, library: str, allocate: str, _: str) -> None:
        self.take = getattr(ctypes.CDLL(library), allocate)
        self.take.argtypes, self.take.restype = [ctypes.c_int64, ctypes.c_int, ctypes.c_int64], ctypes.c_int64

    def allocator(self) -> Self:
        return self


class Pool:
    """Memory of an allocator, from which results come in `use`; what is freed is kept, by size."""

    current: "Pool | None" = None

    def __init__(self, allocator: Allocator) -> None:
        self._take, self._free = allocator.take, dict[int, list[int]]()

    @classmethod
    @contextlib.contextmanager
    def use(cls, pool: "Pool", *_: Any) -> Iterator[None]:
        before, cls.current = cls.current, pool
        try:
            yield
        finally:
            cls.current = before

    def holding(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the tensor in this pool's memory."""
        used = tensor.untyped_storage().nbytes()
        size = -(-used // _WHOLE) * _WHOLE if used > _WHOLE else 1 << max(9, (used - 1).bit_length())
        free = self._free.setdefault(size, [])
        address = free.pop() if free else self._take(size, 0, 0)
        if not address:
            asked = f"Tried to allocate {size / (1 << 30):.2f} GiB."
            raise torch.OutOfMemoryError(f"CUDA out of memory. {asked} Including non-PyTorch memory, …")
        memory = (ctypes.c_uint8 * size).from_address(address)
        weakref.finalize(memory, free.append, address)
        whole = torch.frombuffer(memory, dtype=torch.uint8)[:used].view(tensor.dtype)
        held = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return held.copy_(tensor)


class Live:
    """Bytes of the results that exist, as torch.cuda counts what it has allocated."""

    bytes = most_bytes = 0

    @classmethod
    def count(cls, given_to: Any, made: Any) -> None:
        with torch._C.DisableTorchFunction():
            given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(given_to)}
            for storage in {
                tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
                for tensor in _tensors(made)
                if tensor.untyped_storage().data_ptr() not in given
            }.values():
                cls.add(storage.nbytes())
                weakref.finalize(storage, cls.add, -storage.nbytes())

    @classmethod
    def add(cls, size: int) -> None:
        cls.bytes += size
        cls.most_bytes = max(cls.bytes, cls.most_bytes)

    @classmethod
    def reset(cls, *_: Any) -> None:
        cls.most_bytes = cls.bytes


class FakeTorch(TorchOnGpu):
    def __enter__(self) -> Self:
        super().__enter__()
        cuda: Any = torch.cuda
        replaced: dict[str, Any] = {
            "set_device": set_device,
            "synchronize": synchronize,
            "Event": Event,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "MemPool": Pool,
            "use_mem_pool": Pool.use,
            "memory_allocated": lambda *_: Live.bytes,
            "max_memory_allocated": lambda *_: Live.most_bytes,
            "reset_peak_memory_stats": Live.reset,
            "mem_get_info": _memory_info,
            "is_available": lambda: _count() > 0,
            "device_count": _count,
            "get_device_properties": _properties,
            "default_generators": (torch.default_generator,),
        }
        for name, value in replaced.items():
            setattr(cuda, name, value)
        cuda.memory.CUDAPluggableAllocator = Allocator
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _READ:
            return func(*args)
        if func is torch.as_tensor and hasattr(args[0], "__cuda_array_interface__"):
            return _view(**args[0].__cuda_array_interface__)
        made = super().__torch_function__(func, types, args, kwargs)
        if _computes(func, args, made):
            set_device(0)
            _work(OPERATOR_NS)
            if CUDAGraph.capturing is not None:
                CUDAGraph.capturing.calls.append((func, args, kwargs or {}, made))
            elif Pool.current is not None:
                made = _held(Pool.current, (args, kwargs), made)
            Live.count((args, kwargs), made)
        return made


# What is read of every output, which takes the host as long as a launch if it goes the way of all calls.
_READ = {
    *(getattr(torch.Tensor, name).__get__ for name in ("dtype", "layout", "shape")),
    *(getattr(torch.Tensor, name) for name in ("data_ptr", "dim", "is_conj", "is_neg", "numel", "stride")),
}


def _properties(_: Any = None) -> Any:
    set_device(0)
    found = properties(CHIP)
    found.total_memory, found.L2_cache_size = _driver("cuDeviceTotalMem", 0), 1 << 20
    found.name = _driver("cuDeviceGetName", 64, 0).split(b"\0")[0].decode()
    return found


def _view(data: tuple[int, bool], shape: tuple[int], **_: Any) -> torch.Tensor:
    """Bytes of the device's memory, which is the host's."""
    memory = (ctypes.c_uint8 * shape[0]).from_address(data[0])
    return torch.frombuffer(memory, dtype=torch.uint8)


def _tensors(made: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _held(pool: Pool, given_to: Any, made: Any) -> Any:
    """Return results with those that have memory of their own in the pool's."""
    with torch._C.DisableTorchFunction():
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(given_to)}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            own = type(tensor) is torch.Tensor and tensor.numel() and not tensor.requires_grad
            return (
                pool.holding(tensor) if own and tensor.untyped_storage().data_ptr() not in given else tensor
            )

        return pytree.tree_map_only(torch.Tensor, move, made)


def _computes(func: Callable[..., Any], args: Sequence[Any], made: Any) -> bool:
    """Return True for what would be a kernel: a result in memory of its own, or one that is written over."""
    name = getattr(func, "__name__", "")
    if name.startswith("__") or not isinstance(made, (torch.Tensor, tuple, list)):
        return False
    results = _tensors(made)
    if name.endswith("_"):
        return bool(results)
    with torch._C.DisableTorchFunction():
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(args)}
        return any(result.untyped_storage().data_ptr() not in given for result in results)


_of_c: Any = torch._C  # what launches ask
_of_c._cuda_getDevice = _of_c._cuda_getCurrentRawStream = lambda *_: 0
# Measuring them would take minutes on a CPU, and say nothing of this one.
ceilings._measured = lambda *_: CEILINGS
device_memory._PROBE_BYTES = 4096  # computed by the CPU
FakeTorch(CHIP).__enter__()
