"""Layout of tensors in shared memory, and the fixed-schema bytes that describe a worker's outputs.

An `Arena` is anonymous shared memory (memfd) that referee, oracle and workers map. Its slots all have
the same layout: the tensor inputs of one call, one after the other. The referee never imports torch;
only the functions that make or read tensors do.

The inputs of one call, 1000 float32 and 8 int64. Each has its bytes rounded up to pages of 4096, and a page
to spare:

>>> slots = SlotLayout((TensorLayout("float32", (1000,), (1,)), TensorLayout("int64", (8,), (1,))))
>>> slots.slot_bytes
16384

Within their pages, tensors begin 39 cache lines further on each time, so that no two of 64 share the low 12
bits:

>>> slots.offsets(0), slots.offsets(1)
([0, 10688], [17280, 27968])
>>> [offset % 4096 // 64 for slot in (0, 1) for offset in slots.offsets(slot)]
[0, 39, 14, 53]

A slice of columns, x[:, :3] of [6, 4], lies in 6 runs of 3 elements, and is copied without what lies between
them:

>>> starts, length, _ = TensorLayout("float32", (6, 3), (4, 1)).runs(most=100)
>>> starts.tolist(), length
([0, 4, 8, 12, 16, 20], 3)
"""

import contextlib
import fcntl
import itertools
import math
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

# Name of a torch dtype -> bytes an element; the position is the dtype's code on the wire.
DTYPES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
    "uint16": 2, "uint32": 4, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
_CODES = {name: code for code, name in enumerate(DTYPES)}
_NAMES = tuple(DTYPES)
MAX_DIMS = 8  # dimensions of a tensor in a descriptor
_PAGE, _LINE = 4096, 64  # bytes of an x86 page and cache line; torch's own allocator aligns to the latter
_STRIDE = 39  # cache lines from one tensor's place in its page to the next one's; odd, so that all 64 come up
GRANULE, DEVICE_ALIGNMENT = 2 << 20, 512  # bytes: CUDA's granularity of memory, and cudaMalloc's alignment
_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1; not in Python's fcntl
_MADV_POPULATE_READ = 22  # linux/mman.h, since Linux 5.14; not in Python's mmap
_DESCRIPTOR = struct.Struct(f"<BB6xQ{MAX_DIMS}q{MAX_DIMS}q")
_ADDRESS, _ADDRESS_AT = struct.Struct("<Q"), 8  # within a descriptor
_COUNT = struct.Struct("<I")
_SECONDS = struct.Struct("<d")


@dataclass(frozen=True)
class TensorLayout:
    """Shape and strides (in elements) of a strided tensor; `dtype` is a key of DTYPES."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: "torch.Tensor") -> "TensorLayout":
        """Return the tensor's own layout; a dense one where its elements share memory (expanded tensors)."""
        if 0 in tensor.stride():
            tensor = tensor.contiguous()
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))

    @classmethod
    def from_json(cls, value: Sequence[object]) -> "TensorLayout":
        dtype, shape, strides = value
        assert isinstance(dtype, str) and isinstance(shape, list) and isinstance(strides, list)
        return cls(dtype, tuple(shape), tuple(strides))

    def to_json(self) -> list[object]:
        return [self.dtype, list(self.shape), list(self.strides)]

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element, both included."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    @property
    def contiguous(self) -> bool:
        """True if the elements lie one after the other, in order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def element_bytes(self) -> int:
        """Bytes of the distinct values, without gaps or broadcasting."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.itemsize

    @property
    def overlaps(self) -> bool:
        """True if elements share memory, as those of an expanded tensor do."""
        reach = 0
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1 and stride <= reach:
                return 0 not in self.shape
            reach += (size - 1) * stride
        return False

    def runs(self, most: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int, "TensorLayout"]:
        """Run of adjacent elements, to copy them without what lies between.

        Returns where each run starts, how long a run is, both in elements, and the layout of the copy when
        the runs are put one after the other. Raises ValueError when there are more than `most`.
        """
        rest = sorted((d for d, stride in enumerate(self.strides) if stride), key=self.strides.__getitem__)
        copied = [0] * len(self.shape)
        length = 1
        while rest and (self.shape[rest[0]] == 1 or self.strides[rest[0]] == length):
            copied[rest[0]] = length
            length *= self.shape[rest.pop(0)]
        count = math.prod(self.shape[d] for d in rest)
        if count > most:
            raise ValueError(f"spread over memory in {count} pieces")
        starts = np.zeros(1, dtype=np.int64)
        for d in rest:
            copied[d] = length * len(starts)
            starts = (np.arange(self.shape[d])[:, None] * self.strides[d] + starts).ravel()
        return starts, length, TensorLayout(self.dtype, self.shape, tuple(copied))

    def view(self, memory: memoryview | mmap.mmap, offset: int) -> "torch.Tensor":
        """Return the tensor of this layout over `memory`, sharing it."""
        import torch

        dtype = getattr(torch, self.dtype)
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=dtype)
        count = self.span_bytes // self.itemsize
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        return flat.as_strided(self.shape, self.strides)


class Arena:
    """Memory of `size` bytes behind a descriptor that can be passed to other processes.

    Mapped `private`, it shows what the others write and keeps its own writes to itself.
    """

    def __init__(self, fd: int, size: int, private: bool = False) -> None:
        self.fd = fd
        self.size = size
        sharing = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        self.memory = mmap.mmap(fd, max(size, mmap.PAGESIZE), sharing)
        if private:
            with contextlib.suppress(OSError):  # page faults now, where the system can, not in a timed call
                self.memory.madvise(_MADV_POPULATE_READ)

    @classmethod
    def create(cls, name: str, size: int) -> "Arena":
        """Create memory of a fixed size: nobody can shrink it under those who have mapped it."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(size, mmap.PAGESIZE))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(fd, size)

    def tensor(self, layout: TensorLayout, offset: int) -> "torch.Tensor":
        """Return the tensor of this layout at `offset` bytes, sharing the memory."""
        return layout.view(self.memory, offset)

    def seal(self) -> None:
        """Deny writing to all who have not mapped it shared by now."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # tensors still view it; it goes with the last
            self.memory.close()


def rounded(size: int, to: int) -> int:
    """`size` rounded up to a multiple."""
    return -(-size // to) * to


class Tensors(Protocol):
    """Memory that tensors can be looked at in: an `Arena`, or a GPU's."""

    def tensor(self, layout: TensorLayout, offset: int) -> "torch.Tensor": ...


@dataclass(frozen=True)
class SlotLayout:
    """The tensors of one call, each with a page to spare.

    No two slots of 64 have a tensor at the same place within a page: a core takes a load for one of a
    recent store whose address ends in the same 12 bits, and no kernel should always run into that, or never.
    """

    tensors: tuple[TensorLayout, ...]

    @property
    def slot_bytes(self) -> int:
        return sum(map(_room, self.tensors))

    def offsets(self, slot: int) -> list[int]:
        """Offset of each tensor of a slot in the arena, in bytes."""
        rooms = [_room(tensor) for tensor in self.tensors]
        begins = itertools.accumulate(rooms, initial=slot * self.slot_bytes)
        first = slot * len(rooms)
        return [
            begin + (first + number) * _STRIDE * _LINE % _PAGE
            for number, begin in enumerate(itertools.islice(begins, len(rooms)))
        ]

    def views(self, memory: "Tensors", slot: int) -> list["torch.Tensor"]:
        return [memory.tensor(t, at) for t, at in zip(self.tensors, self.offsets(slot), strict=True)]


def _room(tensor: TensorLayout) -> int:
    return (-(-tensor.span_bytes // _PAGE) + 1) * _PAGE


@dataclass(frozen=True)
class OutputDescriptor:
    """Location of a worker's output tensor: an address in its memory, or an offset in a GPU's heap."""

    layout: TensorLayout
    address: int


def pack_outputs(
    calls: Sequence[Sequence["torch.Tensor"]],
    address: Callable[["torch.Tensor"], int],
    device_s: Callable[[], float] = lambda: math.nan,
) -> bytes:
    """Pack the outputs of every call of a block as fixed-schema bytes; `address`: see `OutputDescriptor`.

    `device_s`: gives the seconds that the block took by the device's own clock. It is asked last, as it may
    wait for a device that computes while outputs are packed.

    Part of every timed call: a descriptor is created once for all tensors of a layout.
    """
    parts = [_COUNT.pack(len(calls))]
    known: dict[object, tuple[bytes, bytes]] = {}
    for outputs in calls:
        parts.append(_COUNT.pack(len(outputs)))
        for tensor in outputs:
            key = tensor.dtype, tensor.shape, tensor.stride()
            around = known.get(key)
            if around is None:
                around = known[key] = _around_address(tensor)
            parts += around[0], _ADDRESS.pack(address(tensor)), around[1]
    return _SECONDS.pack(device_s()) + b"".join(parts)


def _around_address(tensor: "torch.Tensor") -> tuple[bytes, bytes]:
    """Return the tensor's descriptor, before and behind the address."""
    shape = tuple(tensor.shape)
    pad = (0,) * (MAX_DIMS - len(shape))
    code = _CODES[str(tensor.dtype).removeprefix("torch.")]
    packed = _DESCRIPTOR.pack(code, len(shape), 0, *shape, *pad, *tensor.stride(), *pad)
    return packed[:_ADDRESS_AT], packed[_ADDRESS_AT + _ADDRESS.size :]


def unpack_outputs(payload: bytes) -> tuple[list[list[OutputDescriptor]], float]:
    """Return the outputs and seconds of `pack_outputs`. Raises ValueError if they are not well-formed."""
    position = 0

    def read(record: struct.Struct) -> tuple[Any, ...]:
        nonlocal position
        if position + record.size > len(payload):
            raise ValueError("truncated output descriptors")
        position += record.size
        return record.unpack_from(payload, position - record.size)

    (seconds,) = read(_SECONDS)
    result: list[list[OutputDescriptor]] = []
    for _ in range(*read(_COUNT)):
        outputs = []
        for _ in range(*read(_COUNT)):
            code, dims, address, *rest = read(_DESCRIPTOR)
            shape, strides = tuple(rest[:dims]), tuple(rest[MAX_DIMS : MAX_DIMS + dims])
            if code >= len(DTYPES) or dims > MAX_DIMS or min((*shape, *strides, 0)) < 0:
                raise ValueError("malformed output descriptor")
            outputs.append(OutputDescriptor(TensorLayout(_NAMES[code], shape, strides), address))
        result.append(outputs)
    if position != len(payload):
        raise ValueError("output descriptors of the wrong length")
    return result, seconds
