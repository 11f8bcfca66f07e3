"""Ladder of profilers: the readings of each for a candidate, or the reason it cannot be used."""

from collections.abc import Iterator, Sequence

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import plain
from kernelwright.kernelbench.records import Capability
from kernelwright.profiling.counters.per_call import Counters
from kernelwright.profiling.counters.time_shares import TimeShares
from kernelwright.profiling.diagnosis import diagnose
from kernelwright.profiling.emulated.emulation import Emulation
from kernelwright.profiling.gpu.nsight import NsightCompute
from kernelwright.profiling.gpu.tracing import Trace
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import roofline, with_launches
from kernelwright.profiling.rung import Rung, Subject
from kernelwright.profiling.simulated.simulation import Simulation
from kernelwright.profiling.static.cubins import Cubins
from kernelwright.profiling.static.kernel_loops import Loops
from kernelwright.profiling.static.vectorization import Vectorization

# Besides the roofline, which needs no tool.
QUICK: tuple[Rung, ...] = (Loops(),)  # less than a second
CHEAP: tuple[Rung, ...] = (
    NsightCompute(),
    Trace(),
    Cubins(),
    Counters(),
    TimeShares(),
    Loops(),
    Vectorization(),
    Emulation(),
)  # seconds
RUNGS: tuple[Rung, ...] = (*CHEAP, Simulation())


_LONGEST = 500  # letters of what a candidate may have had a hand in


def profile(subject: Subject, rungs: Sequence[Rung] = CHEAP) -> Profile:
    """Return the profile of a candidate by these rungs. Raises TaskError.

    Only a timed candidate has a roofline; for others the built code is read.
    """
    evaluation = subject.evaluation
    known = roofline(subject.evaluator.work(subject.task), evaluation.target, evaluation)
    if known is None:
        layers = [Capability(name="roofline", on=False, why="the candidate was not timed")]
        known = Profile(metrics=(), bottleneck="unknown", speed_of_light=None)
    else:
        why = "its time over the least time for its bytes and FLOPs"
        against = f"; against the ceiling of {known.ceiling}" if known.ceiling else ""
        layers = [Capability(name="roofline", on=True, why=why + against)]
    metrics, remarks = known.metrics, known.remarks
    for rung in rungs:
        try:
            reading = rung.read(subject)
            metrics += reading.metrics
            remarks += reading.remarks
            layers.append(Capability(name=rung.name, on=True, why=plain(reading.how, _LONGEST)))
        except Unavailable as error:
            layers.append(Capability(name=rung.name, on=False, why=plain(str(error), _LONGEST)))
    known = known.model_copy(update={"metrics": metrics, "remarks": remarks, "rungs": tuple(layers)})
    known = with_launches(known, evaluation)
    return known.model_copy(update={"findings": diagnose(known, evaluation)})


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
