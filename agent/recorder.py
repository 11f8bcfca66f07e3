"""Recording: every attempt goes into the run's database, and into the log, the moment it is finished."""

import threading
from dataclasses import dataclass, field

from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.records import LEAST_OWN, Advice, Task
from kernelwright.profiling.records import Profile
from kernelwright.results.formatting import headline
from kernelwright.results.store.database import RunDatabase


class Stopped(Exception):  # noqa: N818 - a state
    """The run is being ended: nothing more is recorded."""


@dataclass
class DatabaseRecorder:
    """Puts attempts into the run database, and a line about each into the log; not while a slot times."""

    database: RunDatabase
    timing_lock: TimingLock
    progress: RunProgress
    stopped: threading.Event
    memory: LessonMemory | None
    _said: set[str] = field(default_factory=set)  # profilers, of which it was said why they read nothing

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None:
        """Record an attempt. Raises Stopped if the run is ending, as its workers may have been killed."""
        if self.stopped.is_set():
            raise Stopped
        evaluation = attempt.evaluation
        with self.timing_lock.shared():
            self.database.record_attempt(
                task.id, number, attempt.candidate, advice, evaluation, attempt.profile, confirms=confirms
            )
            if self.memory is not None:
                self.memory.learn(task)
        self._say_what_is_off(task, attempt.profile)
        speedup = evaluation.speedup.eager if evaluation.speedup is not None else None
        origin = attempt.candidate.origin
        name = f"round {number}" if origin == "round" else f"{origin} (round {number})"
        what = "confirmed" if confirms else name
        how = f"{headline(speedup)} vs eager" if speedup is not None else evaluation.reason.partition("\n")[0]
        if speedup is not None and (evaluation.own_kernel_share or 0.0) < LEAST_OWN:
            unknown = evaluation.own_kernel_share_unknown
            how += f", not known to be by kernels of its own{unknown and f' ({unknown})'}"
        self.progress.say(f"{task.id}: {what}: {evaluation.verdict}, {how}")
        if evaluation.timing is not None:
            for name, why in evaluation.timing.failed_baselines.items():
                first_line = why.partition("\n")[0]
                self.progress.say(f"{task.id}: {name} not available: {first_line}")

    def profile(self, task: Task, number: int, attempt: Attempt) -> None:
        """Record an extended profile. Raises Stopped if the run is ending."""
        if self.stopped.is_set():
            raise Stopped
        assert attempt.profile is not None
        with self.timing_lock.shared():
            self.database.record_profile(task.id, number, attempt.profile)
        self._say_what_is_off(task, attempt.profile)

    def _say_what_is_off(self, task: Task, profile: Profile | None) -> None:
        """Say once in a run why a profiler reads nothing."""
        for rung in profile.rungs if profile is not None else ():
            if not rung.on and rung.name not in self._said:
                self._said.add(rung.name)
                self.progress.say(f"{task.id}: profiler {rung.name} reads nothing: {rung.why}")
