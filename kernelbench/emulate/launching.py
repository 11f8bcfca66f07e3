"""Launches of emulated kernels: ctypes structures for simt.cpp, and its findings in words."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kernelwright.kernelbench.emulate import history
from kernelwright.kernelbench.emulate.building import SOURCE_NAME, Built, Variable, runtime
from kernelwright.kernelbench.emulate.findings import (
    RETURNED,
    Dim,
    FindingKind,
    KernelFault,
    KernelFinding,
    MemoryTraffic,
    Unsupported,
)
from kernelwright.kernelbench.emulate.translation import Translated
from kernelwright.kernelbench.jit.errors import ArgumentError
from kernelwright.kernelbench.jit.launch_sizes import MOST_THREADS, UNASKED_SHARED, check_sizes

_KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
_OVERFLOW = len(_KINDS)  # of a thread's stack: no finding, for a GPU may have had room
_MOST_FINDINGS = 64
MOST_SHARED = 232448  # bytes that a block can have at most, on sm_90
_DYNAMIC = "kw_dynamic_shared"
_ACCESS = ("read", "write", "atomic")
_SPACES = ("__global__", "__shared__", "", "__device__")
_NAMES: tuple[Literal["global", "shared"], ...] = ("global", "shared")
_MOST_WORKERS = 16  # each has 256 KiB of stack for every thread of a block
_MOST_PLACES = 1024  # of a program, whose traffic is counted


class _Index(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Finding(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("space", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("what", ctypes.c_int32),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("count", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("thread", _Index),
        ("block", _Index),
        ("other_thread", _Index),
        ("text", ctypes.c_char * 96),
    )


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("written", ctypes.c_void_p))


class _Variable(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Traffic(ctypes.Structure):
    _fields_ = (
        ("pc", ctypes.c_uint64),
        ("space", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("requests", ctypes.c_uint64),
        ("pieces", ctypes.c_uint64),
        ("least", ctypes.c_uint64),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("local", ctypes.c_void_p),
        ("grid", _Index),
        ("block", _Index),
        ("ranges", ctypes.POINTER(_Range)),
        ("range_count", ctypes.c_uint64),
        ("shared", ctypes.POINTER(_Variable)),
        ("shared_count", ctypes.c_uint64),
        ("globals", ctypes.POINTER(_Variable)),
        ("global_count", ctypes.c_uint64),
        ("granule", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("workers", ctypes.c_uint32),
        ("findings", ctypes.POINTER(_Finding)),
        ("finding_count", ctypes.c_uint64),
        ("traffic", ctypes.POINTER(_Traffic)),
        ("traffic_count", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class EmulatedMemory:
    """Memory that a pointer argument may access.

    `written`: address of a byte for each of its bytes, 0 if that has not been written yet; 0 if all of it
    has.
    """

    name: str
    address: int
    size: int  # bytes
    written: int = 0


_collecting: list[list[KernelFinding]] = []
_counting: list[list[MemoryTraffic]] = []


@contextlib.contextmanager
def traffic() -> Iterator[list[MemoryTraffic]]:
    """Collect the memory requests of four blocks of each kernel launched in the block."""
    found: list[MemoryTraffic] = []
    _counting.append(found)
    try:
        yield found
    finally:
        _counting.pop()


@contextlib.contextmanager
def collected() -> Iterator[list[KernelFinding]]:
    """Collect the findings of launches in the block instead of raising them."""
    found: list[KernelFinding] = []
    _collecting.append(found)
    try:
        yield found
    finally:
        _collecting.pop()


class Emulated:
    """The kernels of one source."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._runtime = runtime()
        self._runtime.kw_launch.argtypes = [ctypes.POINTER(_Launch)]
        self._runtime.kw_launch.restype = ctypes.c_uint64
        self.library = ctypes.CDLL(str(built.library))
        self._globals = (_Variable * max(1, len(built.globals)))(
            *(_Variable(v.begin, v.size) for v in built.globals)
        )
        self.seed = 0

    def launch(
        self,
        kernel: str,
        grid: Dim,
        block: Dim,
        arguments: Sequence[ctypes._SimpleCData],  # type: ignore[type-arg]
        memory: Sequence[EmulatedMemory],
        shared_bytes: int = 0,
    ) -> None:
        """Run all blocks. Raises KernelFault if there are findings, ArgumentError, Unsupported."""
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.cast(ctypes.pointer(each), ctypes.c_void_p) for each in arguments)
        )
        call = ctypes.cast(self.library[f"kw_call_{kernel}"], ctypes.c_void_p)
        given = ctypes.cast(pointers, ctypes.c_void_p)
        threads = block[0] * block[1] * block[2]
        if threads > (bound := self._bound(kernel)):
            raise ArgumentError(
                f"{kernel}: a block of {threads} threads exceeds its __launch_bounds__ of {bound}"
            )
        self.run(kernel, call, given, grid, block, memory, shared_bytes)

    def run(
        self,
        kernel: str,
        call: ctypes.c_void_p,
        given: ctypes.c_void_p,
        grid: Dim,
        block: Dim,
        memory: Sequence[EmulatedMemory],
        shared_bytes: int,
    ) -> None:
        """Make each thread of all blocks call the library's `call` with `given`. Raises as `launch`."""
        with history.watched():
            self._run(kernel, call, given, grid, block, memory, shared_bytes)
        history.has_run(kernel)

    def _run(
        self,
        kernel: str,
        call: ctypes.c_void_p,
        given: ctypes.c_void_p,
        grid: Dim,
        block: Dim,
        memory: Sequence[EmulatedMemory],
        shared_bytes: int,
    ) -> None:
        check_sizes(kernel, grid, block)
        variables = self._variables(kernel, shared_bytes)
        ranges = (_Range * max(1, len(memory)))(
            *(_Range(m.address, m.address + m.size, m.written or None) for m in memory)
        )
        shared = (_Variable * max(1, len(variables)))(*(_Variable(v.begin, v.size) for v in variables))
        found = (_Finding * _MOST_FINDINGS)()
        counted = (_Traffic * _MOST_PLACES)() if _counting else None
        blocks = grid[0] * grid[1] * grid[2]
        wanted = _Launch(
            call,
            given,
            ctypes.cast(self.library.kw_local, ctypes.c_void_p),
            _Index(*grid),
            _Index(*block),
            ranges,
            len(memory),
            shared,
            len(variables),
            self._globals,
            len(self._built.globals),
            self._built.translated.granule,
            self.seed,
            max(1, min(len(os.sched_getaffinity(0)), blocks, _MOST_WORKERS)),
            found,
            _MOST_FINDINGS,
            counted,
            _MOST_PLACES if _counting else 0,
        )
        self.seed += 1  # another order the next time
        count = min(int(self._runtime.kw_launch(ctypes.byref(wanted))), _MOST_FINDINGS)
        if counted is not None:
            _counting[-1].extend(self._traffic(each, kernel) for each in counted[: wanted.traffic_count])
        if count:
            findings = tuple(self._findings(found[:count], memory, variables))
            if not findings:
                line = self._built.lines.get(found[0].pc, 0)
                raise Unsupported("more than 192 KiB of local memory, or recursion that deep,", line)
            if not _collecting:
                raise KernelFault(kernel, findings)
            _collecting[-1].extend(findings)

    def _traffic(self, found: _Traffic, kernel: str) -> MemoryTraffic:
        line = self._built.lines.get(found.pc, 0)
        space, access = _NAMES[found.space], _ACCESS[found.access]
        code = self._built.translated.code(line)
        return MemoryTraffic(kernel, line, space, access, found.requests, found.pieces, found.least, code)

    def name_of(self, kernel: int) -> str:
        """Return the kernel whose address is stored at this one; empty if unknown."""
        address = ctypes.c_void_p.from_address(kernel).value or 0
        local = ctypes.cast(self.library.kw_local, ctypes.c_void_p).value or 0
        return self._built.kernels.get(address - local + self._built.local, "")

    def _bound(self, kernel: str) -> int:
        try:
            return int(ctypes.c_uint.in_dll(self.library, f"kw_bound_{kernel}").value)
        except ValueError:  # it has none
            return MOST_THREADS

    def _variables(self, kernel: str, shared_bytes: int) -> list[Variable]:
        static = [v for v in self._built.variables if v.name != _DYNAMIC]
        largest = max((v.size for v in static), default=0)
        own = max(largest, sum(v.size for v in static if v.function == kernel))
        if own > UNASKED_SHARED:
            raise ArgumentError(
                f"{kernel}: {own} bytes of static shared memory exceed the limit of {UNASKED_SHARED}; "
                "make the rest dynamic"
            )
        if not 0 <= shared_bytes <= MOST_SHARED:
            raise ArgumentError(f"{shared_bytes} bytes of shared memory; must be between 0 and {MOST_SHARED}")
        dynamic = [
            Variable("shared_mem", v.begin, shared_bytes, "")
            for v in self._built.variables
            if v.name == _DYNAMIC
        ]
        return sorted([*static, *dynamic], key=lambda v: v.begin)

    def _findings(
        self, found: Sequence[_Finding], memory: Sequence[EmulatedMemory], variables: Sequence[Variable]
    ) -> Iterator[KernelFinding]:
        lines = self._built.lines
        for each in found:
            if each.kind == _OVERFLOW:
                continue
            kind, line = _KINDS[each.kind], lines.get(each.pc, 0)
            of = "" if each.what < 0 else self._of(each, memory, variables)
            says = _said(kind, each, of, lines, self._built.translated)
            yield KernelFinding(kind, says, line, _dim(each.thread), _dim(each.block), each.count)

    def _of(self, found: _Finding, memory: Sequence[EmulatedMemory], variables: Sequence[Variable]) -> str:
        among = {1: variables, 3: self._built.globals}.get(found.space)
        what = among[found.what] if among else memory[found.what]
        return f"'{what.name}', which has {what.size} bytes"


def _dim(index: _Index) -> Dim:
    return index.x, index.y, index.z


def _place(line: int, translated: Translated) -> str:
    """Format a place in the source: "kernel.cu:12 `y[i] = x[i];`"."""
    if not line:
        return SOURCE_NAME
    code = translated.code(line)
    return f"{SOURCE_NAME}:{line} `{code}`" if code else f"{SOURCE_NAME}:{line}"


def _said(
    kind: FindingKind,
    found: _Finding,
    of: str,  # what was accessed
    lines: dict[int, int],
    translated: Translated,
) -> str:
    """Describe a finding in words."""
    line, other = lines.get(found.pc, 0), lines.get(found.other_pc, 0)
    here, there = _place(line, translated), _place(other, translated)
    who = f"thread {_dim(found.thread)} in block {_dim(found.block)}"
    access, space = _ACCESS[found.access], _SPACES[found.space]
    match kind:
        case "out_of_bounds":
            at = f": byte {found.offset} of {of}" if of else ""
            return f"Invalid {space} {access} of size {found.size} bytes at {here} by {who}{at}."
        case "misaligned":
            return (
                f"Invalid {access} of size {found.size} bytes at {here} by {who}: "
                f"address {found.address:#x} is misaligned."
            )
        case "uninitialized":
            at = f": byte {found.offset} of {of}" if of else ""
            return f"Uninitialized {space} memory read of size {found.size} bytes at {here} by {who}{at}."
        case "read_after_write" | "write_after_read" | "write_after_write":
            first, second = kind.split("_after_")[1], kind.split("_after_")[0]
            return (
                f"Race in {space} memory: {second} access at {here} by {who} and {first} access at "
                f"{there} by thread {_dim(found.other_thread)}, with no barrier between them: "
                f"byte {found.offset} of {of}."
            )
        case "divergent_barrier":
            rest = f"at {there}" if other else RETURNED
            return (
                f"Barrier error: divergent threads in block {_dim(found.block)}: thread {_dim(found.thread)} "
                f"waits at {here}, thread {_dim(found.other_thread)} {rest}."
            )
        case "stuck":
            rest = f", thread {_dim(found.other_thread)} at {there}" if other else ""
            return f"Barrier error: {who} waits at {here}{rest}, for threads that never arrive."
        case "not_in_mask":
            return f"Barrier error at {here}: the mask given by {who} does not include itself."
        case "failed":
            return f"{found.text.decode(errors='replace')} at {here} by {who}."
