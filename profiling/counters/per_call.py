"""Counters of a candidate's calls at steady state: in a warmed-up process, in blocks like the timed ones.

The worker may not open counters itself (`evaluator.sandbox.seccomp`): the referee does, from outside.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import failed_load
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Candidate
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.counters import perf
from kernelwright.profiling.counters.attached import Attached
from kernelwright.profiling.records import Metric
from kernelwright.profiling.rung import Reading, Subject

_BLOCKS = 6
T = TypeVar("T")
_LINE_BYTES = 64  # of x86-64 and most others
_NAMES = {
    "cycles": "cycles",
    "instructions": "instructions",
    "LLC-loads": "last_level_loads",
    "LLC-load-misses": "last_level_load_misses",
    "cache-misses": "cache_misses",
    "branch-misses": "branch_misses",
    "page-faults": "page_faults",
    "context-switches": "context_switches",
}


class Counters:
    """Processor and kernel counters, by perf stat."""

    name = "counters"

    def available(self) -> str:
        events = perf.granted()
        but = perf.lacking(events)
        return f"perf stat: {', '.join(sorted(events))}" + (f"; {but}" if but else "")

    def read(self, subject: Subject) -> Reading:
        if not subject.on_cpu:
            raise Unavailable("only for candidates on a CPU")
        perf.granted()
        calls, counts = watched(subject, perf.PerfCounting)
        but = perf.lacking(set(counts))
        how = f"perf stat over {calls} calls of a process that was warmed up" + (f"; {but}" if but else "")
        return Reading(tuple(metrics(counts, calls)), how)


def watched(subject: Subject, tool: Callable[[int], Attached[T]]) -> tuple[int, T]:
    """Run the candidate under a tool that takes a process id; return the number of calls and its result.

    Raises Unavailable, TaskError.
    """
    with subject.evaluator.sessions.computing():
        session = subject.evaluator.sessions.open(subject.task)
        subject.evaluator.sessions.make_room(session, 1)
        return session.calls * _BLOCKS, _watched(session, subject.candidate, tool)


def _watched(session: TaskSession, candidate: Candidate, tool: Callable[[int], Attached[T]]) -> T:
    calls = session.calls
    try:
        worker, loaded = session.load(
            "candidate", candidate.source, "candidate", "ModelNew", session.limits.load_s, candidate.sha256
        )
        with worker:
            if not loaded.get("ok"):
                raise Unavailable(failed_load(loaded))
            with session.pool.timing_lock.exclusive():
                for _ in range(2):
                    session.prepare(worker, calls)
                    session.run(worker, range(calls), session.oracle.call_seeds(calls))
                with tool(worker.pid) as attached:
                    for _ in range(_BLOCKS):
                        session.prepare(worker, calls)
                        seeds = session.oracle.call_seeds(calls)
                        with attached.on():
                            session.run(worker, range(calls), seeds)
                    return attached.result()
    except (WorkerDied, WorkerTimeout, Refused) as error:
        raise Unavailable(f"running the candidate failed: {error}") from None


def metrics(counts: Mapping[str, float], calls: int) -> Iterator[Metric]:
    """Yield the metrics of one call from the counts of `calls` calls."""
    if "task-clock" in counts:
        yield metric("cpu_time", 1e3 * counts["task-clock"] / calls)
    for event, name in _NAMES.items():
        if event in counts:
            yield metric(name, counts[event] / calls)
    if counts.get("cycles") and "instructions" in counts:
        yield metric("instructions_per_cycle", counts["instructions"] / counts["cycles"])
    if "LLC-load-misses" in counts:
        yield metric("loaded_from_memory", _LINE_BYTES * counts["LLC-load-misses"] / calls)
