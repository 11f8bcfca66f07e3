"""The judge's hold on memory: inputs that oracle and workers share, and the outputs of stopped workers."""

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from kernelbench.evaluator.layout import Arena, OutputDescriptor, SlotLayout
from kernelbench.evaluator.process import Worker, WorkerDied
from kernelbench.evaluator.refusal import Refused
from kernelbench.records import Verdict

Outputs = Sequence[Sequence[OutputDescriptor]]  # of every call of a block
Placed = list[list[object]]  # of each output the memory, as the oracle calls it, offset and layout

_ALIGNMENT = 64  # bytes
_SPREAD = 4  # an output over so many times its size is copied as it lies, else by its runs of elements
_MOST_RUNS = 1 << 24
_GRANULE = 2 << 20  # bytes; of device memory
_USUAL_PROBES = 20
_BUSY, _BUSY_S = 3.0, 5e-5  # a probe that takes so many times what is usual, and so much more, is disturbed


class Memory(Protocol):
    """Inputs in slots, and the outputs of blocks, wherever they lie."""

    def lend(self, worker: Worker) -> tuple[dict[str, Any], list[int]]:
        """What a new worker is told of its memory, and the descriptors that it gets, to be closed here."""

    def delivered(self, slots: Sequence[int]) -> None:
        """The oracle has filled these slots."""

    def flush(self) -> None:
        """Put the inputs out of the caches."""

    def held(self, worker: Worker, outputs: Outputs) -> Outputs:
        """The outputs of the block that `worker` has just ended, where nothing can change them.

        Raises Refused when they lie where no outputs can.
        """

    def place(self, worker: Worker, outputs: Sequence[OutputDescriptor], second: bool = False) -> Placed:
        """Put outputs that are `held` where the oracle sees them; `second`: beside those placed before.

        Raises Refused when they cannot be read.
        """

    def at_rest(self) -> bool:
        """Whether nothing that stopped workers have launched is still running."""

    def wrote_inputs(self, worker: Worker) -> bool:
        """Whether the stopped worker has changed its inputs. Raises WorkerDied."""

    def close(self) -> None: ...


class HostMemory:
    """The machine's own. Nothing changes what a stopped worker has written: outputs stay where they are."""

    def __init__(self, layout: SlotLayout, slots: int, output_bytes: int, cache_bytes: int) -> None:
        """`output_bytes`: of a call; `cache_bytes`: what the last-level cache holds."""
        self.slots = slots
        self.inputs = Arena.create("inputs", layout.slot_bytes * slots)
        # Room for all outputs of two calls as they lie.
        self.readback = Arena.create("readback", 2 * _SPREAD * output_bytes + (1 << 20))
        self._eviction = np.ones(3 * cache_bytes // 2 // 8, dtype=np.int64)

    def lend(self, worker: Worker) -> tuple[dict[str, Any], list[int]]:
        return {"slots": self.slots}, [os.dup(self.inputs.fd)]

    def delivered(self, slots: Sequence[int]) -> None:
        pass

    def flush(self) -> None:
        self._eviction[:: _ALIGNMENT // 8].max()

    def held(self, worker: Worker, outputs: Outputs) -> Outputs:
        return outputs

    def place(self, worker: Worker, outputs: Sequence[OutputDescriptor], second: bool = False) -> Placed:
        """Of an output that is a view of much larger memory only its elements are copied."""
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
                    raise Refused(Verdict.runtime_error, str(error)) from None
                after = end + -end % _ALIGNMENT
        return placed

    def at_rest(self) -> bool:
        return True

    def wrote_inputs(self, worker: Worker) -> bool:
        return worker.wrote_to("inputs")

    def close(self) -> None:
        self.inputs.close()
        self.readback.close()


class DeviceMemory:
    """A GPU's, which the oracle holds: see `device.Lender`.

    The kernels of a process that stands still run on. So workers share nothing, the oracle copies the outputs
    of a block as soon as it has ended, and what still runs then shows (`at_rest`).
    """

    def __init__(self, ask: Callable[..., Any], device: str, heap_bytes: int, slots: int) -> None:
        """`ask`: sends the oracle a message and gives its answer; `heap_bytes`: for a worker's tensors."""
        self._ask, self._slots, self._device = ask, slots, device
        self._heap_bytes = -(-heap_bytes // _GRANULE) * _GRANULE
        self._workers: dict[Worker, int] = {}
        self._pieces: dict[Worker, list[tuple[int, int, int]]] = {}  # begin in the heap, length, where held
        self._numbers = itertools.count()
        self._usual_s = float(np.median([ask("probe_s") for _ in range(_USUAL_PROBES)]))

    def lend(self, worker: Worker) -> tuple[dict[str, Any], list[int]]:
        for other in [w for w in self._workers if w.closed]:
            self._ask("take_back", number=self._workers.pop(other))
            self._pieces.pop(other, None)
        number = self._workers[worker] = next(self._numbers)
        told = self._ask("lend", number=number, heap_bytes=self._heap_bytes)
        fds = told.pop("fds")
        return {"slots": self._slots, "device": self._device, "heap_bytes": self._heap_bytes, **told}, fds

    def delivered(self, slots: Sequence[int]) -> None:
        self._ask("deliver", slots=list(slots))

    def flush(self) -> None:
        self._ask("flush")

    def held(self, worker: Worker, outputs: Outputs) -> Outputs:
        pieces: dict[tuple[int, int], int] = {}
        end = 0
        for output in (o for call in outputs for o in call):
            begin, length = output.address, output.layout.span_bytes
            if begin + length > self._heap_bytes and length:
                raise Refused(Verdict.cheating, "an output is said to lie outside of the worker's memory")
            if length and (begin, length) not in pieces:
                pieces[begin, length] = end
                end += length + -length % _ALIGNMENT
        if end > _SPREAD * self._heap_bytes:
            raise Refused(Verdict.wrong_output, "outputs are views of much more memory than they need")
        found = [(begin, length, to) for (begin, length), to in pieces.items()]
        self._ask("hold", number=self._workers[worker], pieces=found, size=end)
        self._pieces[worker] = found
        return outputs

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

    def at_rest(self) -> bool:
        return float(self._ask("probe_s")) < _BUSY * self._usual_s + _BUSY_S

    def wrote_inputs(self, worker: Worker) -> bool:
        return not self._ask("unchanged", number=self._workers[worker])

    def close(self) -> None:
        """The memory goes with the oracle."""
