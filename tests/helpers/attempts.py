"""Attempts by hand, of one schedule and its variants."""

from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import (
    Build,
    Candidate,
    Ceilings,
    Correctness,
    Environment,
    Evaluation,
    Fingerprint,
    Interval,
    Speedup,
    Stages,
    Target,
    Timing,
    Verdict,
)

SCHEDULE = {"fuse": "all", "vector": "512", "unroll": "off", "k0.keep": "on", "k0.block": "4096"}
SCHEDULE |= {"k0.streaming": "off", "k0.prefetch": "on", "k0.threads": "all"}


def attempt(candidate: Candidate, time_us: float, verdict: Verdict = Verdict.correct) -> Attempt:
    fingerprint = Fingerprint(
        chip="c",
        threads=2,
        memory_bytes=1,
        last_level_cache_bytes=1,
        system="s",
        python="p",
        torch="t",
        compiler="g",
    )
    ceilings = Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=2e10, fp32_flops_s=1e11)
    interval = Interval(median=time_us, low=time_us, high=time_us)
    evaluation = Evaluation(
        task="file:test",
        candidate=candidate.sha256,
        target=Target(device="cpu", languages=("cpp",), ceilings=ceilings, fingerprint=fingerprint),
        verdict=verdict,
        reason="",
        timing=Timing(candidate_us=interval, calls_per_block=1, rounds=1) if time_us else None,
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
    return Attempt(candidate, evaluation, None)


def candidate(**changes: str) -> Candidate:
    knobs = {**SCHEDULE, **{knob.replace("__", "."): value for knob, value in changes.items()}}
    return Candidate(source=str(knobs), language="cpp", author="builtin", schedule=knobs)


def predicted(made: Candidate, time_us: float) -> Attempt:
    """Attempt whose kernels are right and were built for a chip that is not here."""
    found = attempt(made, 0.0, Verdict.unmeasured)
    numbers = Correctness(inputs_tried=7, error=0.1, reference_error=None, worst_input="task")
    build = Build(chip="sm_90", ok=True, card="H100", predicted_us=time_us)
    evaluation = found.evaluation.model_copy(update={"correctness": numbers, "builds": (build,)})
    return Attempt(found.candidate, evaluation, None)


def over_eager(made: Candidate, median: float, low: float, high: float) -> Attempt:
    found = attempt(made, 100.0)
    speedup = Speedup(eager=Interval(median=median, low=low, high=high))
    return Attempt(found.candidate, found.evaluation.model_copy(update={"speedup": speedup}), None)


def slower(high: float) -> Attempt:
    return over_eager(candidate(), 0.8, 0.7, high)
