"""Memory budget of a session: how many calls a block has, how many slots of inputs there are, and for whom.

A softmax over [4096, 393216] in float32 reads 6 GiB and writes 6 GiB. On a GPU with 79 GiB, for a candidate,
eager and torch.compile, blocks have one call:

>>> GIB = 1 << 30
>>> softmax = CallSizes(inputs=6 * GIB, outputs=(6 * GIB,), live=6 * GIB)
>>> budget = on_device(softmax, memory_bytes=79 * GIB, workers=3, most_calls=1600)
>>> budget.calls, budget.block, budget.slots, budget.fits
(1, 1, 1, True)
>>> {part: round(size / GIB, 1) for part, size in budget.parts.items()}
{'processes': 2.5, 'inputs': 12.0, 'outputs': 18.8, 'weights': 0.0, 'reference': 31.0}

With a sixteenth of the rows a block of N calls moves the 6 GiB that keep a GPU busy for 2 ms:

>>> smaller = CallSizes(inputs=6 * GIB // 16, outputs=(6 * GIB // 16,), live=6 * GIB // 16)
>>> budget = on_device(smaller, memory_bytes=79 * GIB, workers=3, most_calls=1600)
>>> budget.calls, budget.block, budget.slots
(8, 16, 16)

On a CPU inputs lie in the host's memory once for all processes, and each worker has its outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelwright.kernelbench.evaluator.memory.layout import GRANULE, rounded

# Chosen by hand, but for sizes of torch's and CUDA's.
_SHARE_OF_MACHINE = 8  # reciprocal of the host's memory that all inputs, or a worker's outputs, may take
_SPARE_CALLS = 4  # beside those whose outputs a block keeps: what calls need in between
_HEAP_BYTES = 1 << 28  # of a worker, beside room for outputs
_TRAFFIC_BYTES = 6 << 30  # of N calls on a GPU: 2 ms at 3 TB/s, ten times what a block costs once
PROCESS_BYTES = 5 << 27  # 640 MiB of a GPU: a process's context, and workspaces of cuBLAS
_FIXED_BYTES = 1 << 30  # of the oracle: blocks of rows in float64, what it evicts the cache with
_SEGMENT_BYTES, _SMALL_BYTES, _LARGE_BYTES = 20 << 20, 1 << 20, 10 << 20  # of torch's caching allocator
_COMPARED = 10  # calls of a block, at most, whose outputs are all compared: of each family of inputs, and one
_DRAWS = 9 / 4  # copies of a slot while it is filled: what was drawn, what that becomes, masks


@dataclass(frozen=True)
class CallSizes:
    """Bytes of one call.

    `live`: the most that a call holds at one time beside its inputs and weights, outputs included. `largest`:
    of its largest tensor. `widening`: of what is computed in float64, the multiple of its size: 4 for bf16.
    `slices`: of the batch, in which float64 results are computed one after the other.
    """

    inputs: int
    outputs: Sequence[int]
    weights: int = 0
    live: int = 0
    largest: int = 0
    widening: int = 2
    slices: int = 1

    @property
    def output_bytes(self) -> int:
        return sum(self.outputs)

    @property
    def temporaries(self) -> int:
        """Bytes that a call holds beside its inputs, weights and outputs."""
        return max(0, self.live - self.output_bytes)


@dataclass(frozen=True)
class HostBudget:
    """Budget on a CPU: blocks of N `calls` and of 2N, and `outputs_bytes` for what a worker keeps of one."""

    sizes: CallSizes
    calls: int
    outputs_bytes: int

    @property
    def block(self) -> int:
        return 2 * self.calls

    @property
    def slots(self) -> int:
        """Slots for a block of 2N calls, with a third more to choose from."""
        return 3 * self.calls

    @property
    def heap_bytes(self) -> int:
        return sum(self.room_bytes(self.block)) * 5 // 4 + _HEAP_BYTES

    def room_bytes(self, calls: int) -> list[int]:
        """Return the pieces of memory for the outputs of a block of `calls`, and some more.

        A small output that is kept splits the piece that a large temporary was in, so that the next call's
        takes new memory: there is a piece as large as the largest tensor for every call, as far as they go.
        """
        size, largest = self.sizes.output_bytes, max(1, self.sizes.largest)
        kept = max(calls, min(calls + _SPARE_CALLS, self.outputs_bytes // max(1, size)))
        left = max(0, self.outputs_bytes // 2 - kept * size)
        return kept * [*self.sizes.outputs] + min(calls, left // largest) * [self.sizes.largest]


def on_host(
    sizes: CallSizes, memory_bytes: int, most_calls: int, inputs_bytes: int, outputs_bytes: int
) -> HostBudget:
    """Return the budget on a CPU with so much memory, for at most `most_calls` calls.

    `inputs_bytes`, `outputs_bytes`: of all slots, and of what a worker keeps of a block, at most.
    """
    inputs_bytes, outputs_bytes = (
        min(size, memory_bytes // _SHARE_OF_MACHINE) for size in (inputs_bytes, outputs_bytes)
    )
    by_inputs = inputs_bytes // max(1, 3 * sizes.inputs)
    by_outputs = outputs_bytes // max(1, 2 * sizes.output_bytes)
    return HostBudget(sizes, max(1, min(most_calls, by_inputs, by_outputs)), outputs_bytes)


@dataclass(frozen=True)
class DeviceBudget:
    """Budget on a GPU, where all is in its own memory: blocks of N `calls`, and of `block` calls at most.

    `parts`: the bytes by what they are for: processes (CUDA's and torch's own), inputs (the oracle's copy and
    the one that candidates are lent), outputs (and temporaries, of all workers), weights (of all workers),
    reference (float64 results and budgets, in the oracle).
    """

    sizes: CallSizes
    memory_bytes: int
    workers: int
    calls: int
    block: int

    @property
    def slots(self) -> int:
        return self.block

    @property
    def heap_bytes(self) -> int:
        kept, sizes = _kept(self.block), self.sizes
        room = sum(_reserved(kept, size) for size in sizes.outputs)
        return room + _reserved(1, sizes.temporaries) + _HEAP_BYTES

    def room_bytes(self, calls: int) -> list[int]:
        """Return the pieces of memory for the outputs of a block of `calls`, and one for temporaries."""
        temporaries = self.sizes.temporaries
        return _kept(calls) * [*self.sizes.outputs] + ([temporaries] if temporaries else [])

    @property
    def aside_bytes(self) -> int:
        """Bytes that a worker is lent beside its heap, where its outputs lie elsewhere."""
        return rounded(self.block * sum(rounded(size, GRANULE) for size in self.sizes.outputs), GRANULE)

    @property
    def parts(self) -> dict[str, int]:
        sizes = self.sizes
        return {
            "processes": (self.workers + 1) * PROCESS_BYTES,
            "inputs": 2 * self.slots * sizes.inputs,
            "outputs": self.workers * self.heap_bytes,
            "weights": self.workers * sizes.weights,
            "reference": _reference_bytes(sizes) + self._compared_bytes,
        }

    @property
    def _compared_bytes(self) -> int:
        """Bytes of outputs that the oracle has copied; those of single calls lie in the host's memory."""
        return min(self.block, _COMPARED) * self.sizes.output_bytes if self.block > 1 else 0

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    def bytes_for(self, workers: int) -> int:
        """Return the bytes that the same blocks take with another number of workers."""
        return replace(self, workers=workers).total_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.memory_bytes


def on_device(sizes: CallSizes, memory_bytes: int, workers: int, most_calls: int) -> DeviceBudget:
    """Return the budget on a GPU: as many calls as fit and are of use, at most `most_calls`.

    Where two calls do not fit, blocks have one; that may not fit either (`fits`).
    """

    def budget(calls: int) -> DeviceBudget:
        return DeviceBudget(sizes, memory_bytes, workers, calls, 2 * calls)

    of_use = -(-_TRAFFIC_BYTES // max(1, sizes.inputs + sizes.output_bytes))
    fitting, too_many = 0, max(1, min(most_calls, of_use)) + 1
    while fitting + 1 < too_many:
        calls = (fitting + too_many) // 2
        if budget(calls).fits:
            fitting = calls
        else:
            too_many = calls
    return budget(fitting) if fitting else DeviceBudget(sizes, memory_bytes, workers, 1, 1)


def _kept(calls: int) -> int:
    """Count of calls for whose outputs there is room in a block of `calls`."""
    return calls + min(_SPARE_CALLS, calls // 2)


def _reserved(count: int, size: int) -> int:
    """Bytes that torch's caching allocator reserves for `count` pieces of memory of one size."""
    if size >= _LARGE_BYTES:
        return count * rounded(size, GRANULE)
    if size <= _SMALL_BYTES:
        return rounded(count * rounded(size, 512), GRANULE)
    in_a_segment = _SEGMENT_BYTES // rounded(size, 512)
    return -(-count // in_a_segment) * _SEGMENT_BYTES


def _reference_bytes(sizes: CallSizes) -> int:
    """Bytes that the oracle takes at its peak, beside the inputs of all slots.

    It keeps the model in its own precision and in float64, and for a while a third one with moved weights.
    The peak is that of one of three steps: a run in float64, beside the result in the task's own precision; a
    run on moved inputs, beside that and the float64 result; the drawing of inputs. A comparison takes less.
    """
    outputs, live = sizes.output_bytes, max(sizes.live, sizes.output_bytes)
    results = outputs + sizes.widening * outputs
    if sizes.slices > 1:
        exact = results + sizes.widening * (sizes.inputs + live) // sizes.slices
        moved = results + outputs + (sizes.inputs + live) // sizes.slices
    else:
        exact = outputs + sizes.widening * (sizes.inputs + live)
        moved = results + sizes.inputs + live
    peak = max(exact, moved, outputs + sizes.inputs + live, int(_DRAWS * sizes.inputs))
    return (2 + sizes.widening) * sizes.weights + peak + _FIXED_BYTES
