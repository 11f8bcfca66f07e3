"""Recording: every attempt goes into the run's database, and into the log, the moment it is finished."""

import threading
from dataclasses import dataclass

from kernelwright.agent.progress import RunProgress
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.records import LEAST_OWN, Advice, Task
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
        speedup = evaluation.speedup.eager if evaluation.speedup is not None else None
        what = "confirmed" if confirms else f"round {number}"
        how = f"{headline(speedup)} vs eager" if speedup is not None else evaluation.reason.partition("\n")[0]
        if speedup is not None and (evaluation.own_kernel_share or 0.0) < LEAST_OWN:
            how += ", not known to be by kernels of its own"
        self.progress.say(f"{task.id}: {what}: {evaluation.verdict}, {how}")
        if evaluation.timing is not None:
            for name, why in evaluation.timing.failed_baselines.items():
                first_line = why.partition("\n")[0]
                self.progress.say(f"{task.id}: {name} not available: {first_line}")
