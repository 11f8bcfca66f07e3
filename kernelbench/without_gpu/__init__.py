"""Evaluation of GPU kernels without a GPU, and the one place that puts evaluators together."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.protocol import Limits, Protocol
from kernelwright.kernelbench.evaluator.referee import Referee
from kernelwright.kernelbench.evaluator.several_devices import SeveralDevices
from kernelwright.kernelbench.machine import parts_of_cpus, physical_threads
from kernelwright.kernelbench.without_gpu.evaluator import DEFAULT_CHIPS, FEW, CheckedFirst, EmulatedEvaluator

__all__ = ["DEFAULT_CHIPS", "CheckedFirst", "EmulatedEvaluator", "start_evaluator"]


def start_evaluator(
    *,
    cache: Path,
    protocol: Protocol | None = None,
    limits: Limits | None = None,
    devices: Sequence[str] = ("cpu",),
    chips: Sequence[str] = (),
    without: Collection[str] = (),
) -> LocalEvaluator:
    """Start the evaluator that these options ask for.

    `devices`: the CPU, or one or several GPUs, each with its part of the CPUs. `chips`: on the CPU, evaluate
    GPU kernels in emulation and build them for these ("sm_90"). With `protocol.check_first`, CUDA C++ is
    emulated before it runs on the GPU. For the others see `Referee.start` and `SeveralDevices`, which also
    say what is raised.
    """
    chip = chips[0] if len(chips) == 1 else None
    threads = max(1, physical_threads() // len(devices))

    def start(device: str, cpus: Collection[int]) -> LocalEvaluator:
        referee = Referee.start(
            cache=cache,
            protocol=protocol,
            limits=limits,
            threads=threads,
            device=device,
            chip=chip,
            without=without,
            cpus=cpus,
        )
        if chips:
            return EmulatedEvaluator(referee, chips)
        if protocol is None or not protocol.check_first:
            return referee
        on_cpu = Referee.start(
            cache=cache,
            protocol=Protocol(families=FEW),
            limits=limits,
            threads=threads,
            without=without,
            timing_lock=referee.sessions.pool.timing_lock,
            cpus=cpus,
        )
        return CheckedFirst(referee, on_cpu)

    if len(devices) == 1:
        return start(devices[0], ())
    with ExitStack() as started:
        parts = zip(devices, parts_of_cpus(len(devices)), strict=True)
        members = [started.enter_context(start(device, cpus)) for device, cpus in parts]
        evaluator = SeveralDevices(members)
        started.pop_all()
    return evaluator
