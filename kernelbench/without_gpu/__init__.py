"""Evaluation of GPU kernels without a GPU, and the one place that puts evaluators together."""

from collections.abc import Collection, Sequence
from pathlib import Path

from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.protocol import Limits, Protocol
from kernelwright.kernelbench.evaluator.referee import Referee
from kernelwright.kernelbench.without_gpu.evaluator import DEFAULT_CHIPS, FEW, CheckedFirst, EmulatedEvaluator

__all__ = ["DEFAULT_CHIPS", "CheckedFirst", "EmulatedEvaluator", "start_evaluator"]


def start_evaluator(
    *,
    cache: Path,
    protocol: Protocol | None = None,
    limits: Limits | None = None,
    device: str = "cpu",
    chips: Sequence[str] = (),
    without: Collection[str] = (),
) -> LocalEvaluator:
    """Start the evaluator that these options ask for.

    `chips`: on the CPU, evaluate GPU kernels in emulation and build them for these ("sm_90"). With
    `protocol.check_first`, CUDA C++ is emulated before it runs on the GPU. For the others see
    `Referee.start`, which also says what is raised.
    """
    chip = chips[0] if len(chips) == 1 else None
    referee = Referee.start(
        cache=cache, protocol=protocol, limits=limits, device=device, chip=chip, without=without
    )
    if chips:
        return EmulatedEvaluator(referee, chips)
    if protocol is None or not protocol.check_first:
        return referee
    on_cpu = Referee.start(
        cache=cache,
        protocol=Protocol(families=FEW),
        limits=limits,
        threads=referee.sessions.pool.threads,
        without=without,
        timing_lock=referee.sessions.pool.timing_lock,
    )
    return CheckedFirst(referee, on_cpu)
