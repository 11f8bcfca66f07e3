"""Memory that a session has on a GPU, and that is lacking for its workers."""

from types import SimpleNamespace
from typing import Any

from kernelwright.kernelbench.evaluator.footprint import Footprint
from kernelwright.kernelbench.evaluator.memory.budget import PROCESS_BYTES, CallSizes, on_device, on_host

GIB = 1 << 30
SOFTMAX = CallSizes(inputs=6 * GIB, outputs=(6 * GIB,), live=6 * GIB)  # [4096, 393216] in float32
BUDGET = on_device(SOFTMAX, memory_bytes=79 * GIB, workers=3, most_calls=1)


class Oracle:
    """Stands for the client of an oracle on a GPU of which so much is free."""

    memory_bytes = GIB

    def __init__(self, taken: int, free: int) -> None:
        self.device_bytes, self.free_device_bytes = lambda: taken, lambda: free


def footprint(taken: int, free: int, baselines: int) -> Footprint:
    up: Any = [SimpleNamespace(memory_bytes=GIB)] * baselines
    oracle: Any = Oracle(taken, free)
    return Footprint(oracle, BUDGET, lambda: up)


def test_inputs_and_the_reference_are_there_once_and_a_heap_for_each_worker() -> None:
    one, two = (BUDGET.bytes_for(workers) for workers in (1, 2))
    assert two - one == BUDGET.heap_bytes + PROCESS_BYTES  # and no copy of the inputs
    assert one == 2 * PROCESS_BYTES + 12 * GIB + BUDGET.heap_bytes + BUDGET.parts["reference"]


def test_what_is_lacking_is_what_is_needed_less_what_it_has_and_what_is_free() -> None:
    taken = 12 * GIB + BUDGET.heap_bytes  # the master copy, the window, and eager's heap
    has = taken + 2 * PROCESS_BYTES
    needed = BUDGET.bytes_for(2)
    assert footprint(taken, 0, baselines=1).device_bytes() == has
    assert footprint(taken, 0, baselines=1).lacking_device_bytes(2) == needed - has
    assert footprint(taken, needed - has - 1, baselines=1).lacking_device_bytes(2) == 1
    assert footprint(taken, needed - has, baselines=1).lacking_device_bytes(2) == 0


def test_baselines_that_are_up_stay_beside_a_candidate() -> None:
    three, two = (footprint(0, 0, baselines=number).lacking_device_bytes(2) for number in (3, 1))
    assert three - two == 2 * (BUDGET.heap_bytes + PROCESS_BYTES) - 2 * PROCESS_BYTES


def test_on_the_cpu_nothing_of_a_gpu_is_asked_for() -> None:
    oracle: Any = SimpleNamespace(memory_bytes=GIB)
    host = Footprint(oracle, on_host(SOFTMAX, 64 * GIB, 1, GIB, GIB), list)
    assert (host.device_bytes(), host.lacking_device_bytes(9)) == (0, 0)
    assert host.host_bytes() == GIB < host.wanted_bytes(1)
