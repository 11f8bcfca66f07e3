"""Recorder of the calls of a candidate's C++ kernels: functions, scalars and memory."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from kernelwright.kernelbench.jit.library import CppLibrary
from kernelwright.kernelbench.jit.signature import Parameter, Signature

MOST_BYTES, _MOST_CALLS = 512 << 20, 5000


@dataclass(frozen=True)
class MemoryRange:
    """Bytes of a tensor, at their address in the recorded process."""

    address: int
    size: int


Scalar = int | float
Argument = MemoryRange | tuple[MemoryRange, ...] | Scalar


@dataclass(frozen=True)
class RecordedCall:
    """One call. `contents`: files with the memory before the call, unless a recorded call produced it."""

    build: Path  # the folder in the build cache
    signature: Signature
    arguments: tuple[Argument, ...]
    contents: tuple[tuple[MemoryRange, Path], ...]

    @property
    def memory(self) -> Iterator[MemoryRange]:
        for argument in self.arguments:
            if isinstance(argument, MemoryRange):
                yield argument
            elif isinstance(argument, tuple):
                yield from argument


class TooMuch(Exception):  # noqa: N818 - what happened
    """More calls, or calls on more memory, than are recorded."""


class CallRecorder:
    """Recorder of calls to libraries built after `watch`, inside the block of `recording`."""

    def __init__(self, folder: Path) -> None:
        """Write the contents of memory to `folder`."""
        self.calls: list[RecordedCall] = []
        self._folder = folder
        self._on = False
        self._left: dict[MemoryRange, int] = {}  # a hash of what the last call has left there
        self._written = 0

    def watch(self) -> None:
        """Record libraries loaded from now on."""
        construct = CppLibrary.__init__

        def constructed(library: CppLibrary, path: Path, signatures: dict[str, Signature]) -> None:
            construct(library, path, signatures)
            for name in dir(library):
                if name in signatures:
                    call = getattr(library, name)
                    library.__dict__[name] = self._recorded(call, path.parent, signatures[name])

        setattr(CppLibrary, "__init__", constructed)  # noqa: B010 - no method is assigned to

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _recorded(self, call: Callable[..., Any], build: Path, signature: Signature) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            if not self._on:
                return call(*arguments)
            made = self._before(build, signature, arguments)
            result = call(*arguments)
            self.calls.append(made)
            for memory in made.memory:
                self._left[memory] = _hash(memory)
            return result

        return wrapper

    def _before(self, build: Path, signature: Signature, arguments: tuple[Any, ...]) -> RecordedCall:
        if len(self.calls) == _MOST_CALLS:
            raise TooMuch(f"one forward makes more than {_MOST_CALLS} kernel calls")
        taken = tuple(_argument(p, a) for p, a in zip(signature.parameters, arguments, strict=True))
        bare = RecordedCall(build, signature, taken, ())
        contents = [(memory, self._content(memory)) for memory in dict.fromkeys(bare.memory)]
        return RecordedCall(
            build, signature, taken, tuple((m, file) for m, file in contents if file is not None)
        )

    def _content(self, memory: MemoryRange) -> Path | None:
        """Write memory to a file and return it; None if a recorded call left it in this state."""
        if self._left.get(memory) == _hash(memory):
            return None
        self._written += memory.size
        if self._written > MOST_BYTES:
            raise TooMuch(f"its kernels work on more than {MOST_BYTES >> 20} MiB; use smaller sizes")
        file = self._folder / f"{self._written}-{memory.address:x}.bin"
        file.write_bytes(_bytes(memory))
        return file


def _argument(parameter: Parameter, value: Any) -> Argument:
    if parameter.pointers == 2:
        return tuple(map(_memory, value))
    if parameter.pointers:
        return _memory(value)
    return float(value) if parameter.type in ("float", "double") else int(value)


def _memory(tensor: torch.Tensor) -> MemoryRange:
    return MemoryRange(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _bytes(memory: MemoryRange) -> memoryview:
    return memoryview((ctypes.c_char * memory.size).from_address(memory.address)).cast("B")


def _hash(memory: MemoryRange) -> int:
    return xxhash.xxh3_64_intdigest(_bytes(memory)) if memory.size else 0
