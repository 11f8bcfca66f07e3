"""Ladder of profilers: the readings of each for a candidate, or the reason it cannot be used."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import plain
from kernelwright.kernelbench.records import Capability
from kernelwright.profiling.counters.per_call import Counters
from kernelwright.profiling.counters.time_shares import TimeShares
from kernelwright.profiling.diagnosis import diagnose
from kernelwright.profiling.emulated.emulation import Emulation
from kernelwright.profiling.gpu.nsight import NsightCompute
from kernelwright.profiling.gpu.tracing import Trace
from kernelwright.profiling.records import Metric, Profile, Remark, RungOutcome
from kernelwright.profiling.roofline import roofline, with_launches
from kernelwright.profiling.rung import NotHere, Rung, Subject
from kernelwright.profiling.simulated.simulation import Simulation
from kernelwright.profiling.static.cubins import Cubins
from kernelwright.profiling.static.kernel_loops import Loops
from kernelwright.profiling.static.vectorization import Vectorization

# Besides the roofline, which needs no tool. On a GPU machine code is read together with its traced launches.
ON_GPU: tuple[Rung, ...] = (Trace(), Cubins())
CHEAP: tuple[Rung, ...] = (
    NsightCompute(),
    *ON_GPU,
    Counters(),
    TimeShares(),
    Loops(),
    Vectorization(),
    Emulation(),
)  # seconds
RUNGS: tuple[Rung, ...] = (*CHEAP, Simulation())
_LONGEST = 500  # letters of what a candidate may have had a hand in


def profile(subject: Subject, rungs: Sequence[Rung] = CHEAP, known: Profile | None = None) -> Profile:
    """Return the profile of a candidate by these rungs. Raises TaskError.

    Only a timed candidate has a roofline; for others the built code is read. `known`: an earlier profile of
    the candidate, which this one extends: its rungs are not asked again.
    """
    evaluation = subject.evaluation
    found = roofline(subject.evaluator.work(subject.task), evaluation.target, evaluation)
    if found is None:
        first = RungOutcome(name="roofline", on=False, why="the candidate was not timed")
        found = Profile(metrics=(), bottleneck="unknown", speed_of_light=None, rungs=(first,))
    else:
        why = "its time over the least time for its bytes and FLOPs"
        against = f"; against the ceiling of {found.ceiling}" if found.ceiling else ""
        first = RungOutcome(name="roofline", on=True, why=why + against)
        found = found.model_copy(update={"rungs": (first,)})
    if known is not None:
        kept = tuple(metric for metric in known.metrics if metric.provenance != "roofline")
        found = _with(found, kept, known.remarks, *(rung for rung in known.rungs if rung.name != "roofline"))
    for rung in rungs:
        if rung.name not in {asked.name for asked in found.rungs}:
            found = _asked(rung, replace(subject, known=found))
    found = with_launches(found, evaluation)
    return found.model_copy(update={"findings": diagnose(found, evaluation)})


def _asked(rung: Rung, subject: Subject) -> Profile:
    """Return what is known of the subject with what one more rung reads."""
    found, started = subject.known, time.monotonic()
    assert found is not None
    try:
        reading = rung.read(subject)
    except Unavailable as error:
        outcome = RungOutcome(
            name=rung.name,
            on=False,
            why=plain(str(error), _LONGEST),
            seconds=_since(started),
            for_all=isinstance(error, NotHere),
        )
        return _with(found, (), (), outcome)
    how = plain(reading.how, _LONGEST)
    outcome = RungOutcome(name=rung.name, on=True, why=how, seconds=_since(started))
    return _with(found, reading.metrics, reading.remarks, outcome)


def _with(
    found: Profile, metrics: tuple[Metric, ...], remarks: tuple[Remark, ...], *rungs: RungOutcome
) -> Profile:
    more = {
        "metrics": found.metrics + metrics,
        "remarks": found.remarks + remarks,
        "rungs": found.rungs + rungs,
    }
    return found.model_copy(update=more)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)


def findings() -> Iterator[Capability]:
    """Yield the profilers of this machine, for `doctor`."""
    yield Capability(
        name="profiler roofline", on=True, why="bytes and FLOPs of the reference over measured ceilings"
    )
    for rung in RUNGS:
        try:
            yield Capability(name=f"profiler {rung.name}", on=True, why=rung.available())
        except Unavailable as error:
            yield Capability(name=f"profiler {rung.name}", on=False, why=str(error))
