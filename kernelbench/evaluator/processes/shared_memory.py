"""The referee's hold on memory: inputs that oracle and workers share, and the outputs of stopped workers."""

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from kernelwright.kernelbench.evaluator.memory import eviction
from kernelwright.kernelbench.evaluator.memory.layout import (
    DEVICE_ALIGNMENT,
    GRANULE,
    Arena,
    OutputDescriptor,
    SlotLayout,
    rounded,
)
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, WorkerDied
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.records import Verdict

Outputs = Sequence[Sequence[OutputDescriptor]]  # of every call of a block
Placed = list[list[object]]  # of each output the memory, as the oracle calls it, offset and layout

_ALIGNMENT = 64  # bytes
_SPREAD = 4  # an output over so many times its size is copied as it lies, else by its runs of elements
_MOST_RUNS = 1 << 24
_GAP, _MOST_PIECES = 1 << 16, 1024
_USUAL_PROBES = 20
_BUSY, _BUSY_S = 3.0, 5e-5  # a probe that takes so many times what is usual, and so much more, is disturbed


class Memory(Protocol):
    """Inputs in slots, and the outputs of blocks, wherever they lie."""

    def describe(self, worker: Worker) -> tuple[dict[str, Any], list[int]]:
        """Return what a new worker must know to map its memory, and descriptors for it, to be closed here."""

    def reveal(self, worker: Worker, slots: Sequence[int], flush: bool) -> bool:
        """Just before a block: show the worker its inputs and, with `flush`, put them out of the caches.

        False where kernels ran right then, though none was asked for.
        """

    def lend(self, worker: Worker, within_s: float) -> bool:
        """Give a stopped worker memory for copies of outputs that lie elsewhere; False if it has that.

        Raises WorkerDied, WorkerTimeout, and NoDeviceMemory where there is none.
        """

    def hold(self, worker: Worker, outputs: Outputs, wanted: Sequence[OutputDescriptor]) -> None:
        """Keep what is `wanted` of the outputs of the block that `worker` has just ended from changing.

        Raises Refused when outputs lie where none can.
        """

    def place(self, worker: Worker, outputs: Sequence[OutputDescriptor], second: bool = False) -> Placed:
        """Put outputs that are held where the oracle sees them; `second`: beside those placed before.

        Raises Refused when they cannot be read.
        """

    def is_idle(self) -> bool:
        """Return True if nothing that stopped workers have launched is still running."""

    def wrote_inputs(self, worker: Worker, slots: Sequence[int]) -> bool:
        """Return True if the stopped worker has changed inputs, in `slots` at least. Raises WorkerDied."""

    def is_input(self, worker: Worker, output: OutputDescriptor) -> bool:
        """Return True if the output of a stopped worker lies in its inputs' memory. Raises WorkerDied."""

    @property
    def empties_caches(self) -> bool:
        """True if `reveal` with `flush` evicts inputs from the caches; that takes memory."""

    def close(self) -> None: ...


class HostMemory:
    """The machine's own. Nothing changes what a stopped worker has written: outputs stay where they are."""

    def __init__(self, layout: SlotLayout, slots: int, output_bytes: int) -> None:
        """`output_bytes`: of a call."""
        self.slots = slots
        self.inputs = Arena.create("inputs", layout.slot_bytes * slots)
        # Room for all outputs of two calls as they lie.
        self.readback = Arena.create("readback", 2 * _SPREAD * output_bytes + (1 << 20))
        self._evict = eviction.of_machine()

    @property
    def empties_caches(self) -> bool:
        return self._evict.complete

    def describe(self, worker: Worker) -> tuple[dict[str, Any], list[int]]:
        return {"slots": self.slots}, [os.dup(self.inputs.fd)]

    def reveal(self, worker: Worker, slots: Sequence[int], flush: bool) -> bool:
        if flush:
            self._evict()
        return True

    def lend(self, worker: Worker, within_s: float) -> bool:
        return False

    def hold(self, worker: Worker, outputs: Outputs, wanted: Sequence[OutputDescriptor]) -> None:
        pass

    def place(self, worker: Worker, outputs: Sequence[OutputDescriptor], second: bool = False) -> Placed:
        """Place outputs; of a view of much larger memory only the elements are copied."""
        after = self.readback.size // 2 if second else 0
        placed: Placed = []
        with memoryview(self.readback.memory) as memory:
            for output in outputs:
                layout, length = output.layout, output.layout.span_bytes
                starts = np.zeros(1, dtype=np.int64)
                if length > _SPREAD * layout.element_bytes:
                    try:
                        starts, elements, layout = layout.runs(_MOST_RUNS)
                    except ValueError as error:
                        raise Refused(Verdict.wrong_output, f"an output is {error}") from None
                    length = elements * layout.itemsize
                placed.append(["readback", after, layout.to_json()])
                end = after + length * len(starts)
                try:
                    if length:
                        addresses = starts.astype(np.uint64) * np.uint64(layout.itemsize)
                        worker.read(addresses + np.uint64(output.address), length, memory[after:end])
                except WorkerDied as error:
                    raise Refused(error.verdict, str(error)) from None
                after = end + -end % _ALIGNMENT
        return placed

    def is_idle(self) -> bool:
        return True

    def wrote_inputs(self, worker: Worker, slots: Sequence[int]) -> bool:
        return worker.wrote_to("inputs")

    def is_input(self, worker: Worker, output: OutputDescriptor) -> bool:
        return worker.has_in("inputs", output.address)

    def close(self) -> None:
        self.inputs.close()
        self.readback.close()


class DeviceMemory:
    """GPU memory that the oracle holds: see `memory.cuda.MemoryExporter`.

    The kernels of a stopped process run on. So a block has ended when the device is idle, and then the oracle
    copies what will be compared of its outputs.
    """

    def __init__(
        self, ask: Callable[..., Any], device: str, heap_bytes: int, aside_bytes: int, slots: int
    ) -> None:
        """Begin without workers.

        `ask`: sends the oracle a message and returns its answer. `heap_bytes`: for a worker's tensors;
        `aside_bytes`: behind that, for outputs that a worker has allocated elsewhere, once it has any.
        """
        self._ask, self._slots, self._device = ask, slots, device
        self._aside_bytes, self._heap_bytes = rounded(aside_bytes, GRANULE), rounded(heap_bytes, GRANULE)
        self._workers: dict[Worker, int] = {}
        self._borrowers: set[Worker] = set()  # that have got what is behind their heaps
        self._pieces: dict[Worker, list[tuple[int, int, int]]] = {}  # begin in the heap, length, where held
        self._numbers = itertools.count()
        self._usual_s = min(float(ask("probe_s")) for _ in range(_USUAL_PROBES))

    empties_caches = True

    def describe(self, worker: Worker) -> tuple[dict[str, Any], list[int]]:
        self._take_back()
        number = next(self._numbers)
        sizes = {"heap_bytes": self._heap_bytes, "aside_bytes": self._aside_bytes}
        mapping = self._ask("describe", number=number, trusted=worker.role == "baseline", **sizes)
        self._workers[worker] = number
        fds = mapping.pop("fds")
        return {"slots": self._slots, "device": self._device, **sizes, **mapping}, fds

    def lend(self, worker: Worker, within_s: float) -> bool:
        if worker in self._borrowers or not self._aside_bytes:
            return False
        self._take_back()
        fds = self._ask("lend", number=self._workers[worker], size=self._aside_bytes)["fds"]
        self._borrowers.add(worker)
        try:
            worker.thaw()
            worker.ask({"do": "borrow", "bytes": self._aside_bytes}, within_s, fds)
            worker.freeze()
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def taken_bytes(self) -> int:
        """Memory of the device that the oracle has taken, for itself and for workers."""
        self._take_back()
        return int(self._ask("taken_bytes"))

    def free_bytes(self) -> int:
        """Memory of the device that nobody has taken."""
        self._take_back()
        return int(self._ask("free_bytes"))

    def _take_back(self) -> None:
        """Free the memory of workers that have ended."""
        for other in [w for w in self._workers if w.closed]:
            self._ask("take_back", number=self._workers.pop(other))
            self._pieces.pop(other, None)
            self._borrowers.discard(other)

    def reveal(self, worker: Worker, slots: Sequence[int], flush: bool) -> bool:
        number = self._workers[worker]
        return self._usual(self._ask("deliver", number=number, slots=list(slots), flush=flush))

    def hold(self, worker: Worker, outputs: Outputs, wanted: Sequence[OutputDescriptor]) -> None:
        end = self._heap_bytes + (self._aside_bytes if worker in self._borrowers else 0)
        for output in (o for call in outputs for o in call):
            reaches = output.address + output.layout.span_bytes
            if output.layout.span_bytes and (reaches > end or output.address % output.layout.itemsize):
                raise Refused(Verdict.cheating, "an output is said to lie where none can")
        spans = []
        for output in wanted:
            start = output.address // DEVICE_ALIGNMENT * DEVICE_ALIGNMENT
            if output.layout.span_bytes:
                spans.append((start, output.address + output.layout.span_bytes - start))
        pieces, size = _merged(spans)
        if pieces:
            self._ask("hold", number=self._workers[worker], pieces=pieces, size=size)
        self._pieces[worker] = pieces
        self._take_back()

    def place(self, worker: Worker, outputs: Sequence[OutputDescriptor], second: bool = False) -> Placed:
        return [
            [self._workers[worker], self._where(worker, output), output.layout.to_json()]
            for output in outputs
        ]

    def _where(self, worker: Worker, output: OutputDescriptor) -> int:
        last = output.address + output.layout.span_bytes
        return next(
            (
                to + output.address - begin
                for begin, length, to in self._pieces[worker]
                if begin <= output.address and last <= begin + length
            ),
            0,  # an output of no elements
        )

    def is_idle(self) -> bool:
        return self._usual(self._ask("probe_s", probes=1))  # in time that counts

    def _usual(self, probe_s: float) -> bool:
        return probe_s < _BUSY * self._usual_s + _BUSY_S

    def is_input(self, worker: Worker, output: OutputDescriptor) -> bool:
        return False  # what lies outside its heap is copied there, which takes the worker's time

    def wrote_inputs(self, worker: Worker, slots: Sequence[int]) -> bool:
        return not self._ask("unchanged", number=self._workers[worker], slots=list(slots))

    def close(self) -> None:
        """Leave the memory to the oracle, with which it goes."""


def _merged(spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int, int]], int]:
    """Merge (begin, length) spans; return begin, length and destination of each, and all bytes.

    Bytes between spans are copied too, where they are few or there would be too many pieces.
    """
    gap = _GAP
    while True:
        pieces: list[tuple[int, int]] = []
        for begin, length in sorted(spans):
            if pieces and begin <= sum(pieces[-1]) + gap:
                first, known = pieces[-1]
                pieces[-1] = first, max(known, begin + length - first)
            else:
                pieces.append((begin, length))
        if len(pieces) <= _MOST_PIECES:
            break
        gap *= 4
    placed, end = [], 0
    for begin, length in pieces:
        placed.append((begin, length, end))
        end += rounded(length, _GAP)
    return placed, end
