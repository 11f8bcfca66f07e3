"""Data of a task for an environment: frozen, JSON in and out."""

from collections.abc import Iterator, Sequence

from kernelwright.agent.llm.situation import Situation
from kernelwright.kernelbench.operator_families import operator_families
from kernelwright.kernelbench.records import Candidate, Interval, Language, Record, Target, Task, Work
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt
from kernelwright.results.summary import best_attempt
from kernelwright.rl_training.outcome import outcome_of


class WinningKernel(Record):
    """The best kernel of a run, and its speedup over eager."""

    candidate: Candidate
    speedup: Interval


class TaskData(Record):
    task: Task
    language: Language  # that kernels are to be written in
    target: Target
    work: Work
    lessons: tuple[str, ...] = ()
    winner: WinningKernel | None = None

    @property
    def situation(self) -> Situation:
        return Situation(self.task, self.target, self.work, self.lessons)

    @property
    def family(self) -> str:
        return family_of(self.task)


def family_of(task: Task) -> str:
    """Return a task's operator families: "normalization", "pooling+product"."""
    return "+".join(sorted(operator_families(task)))


def tasks_of(run: RunDatabase, language: Language = "cpp") -> Iterator[TaskData]:
    """Yield the tasks of a run that measure something and have a profile that describes their work."""
    target = run.run.target
    for entry in run.tasks():
        attempts = run.attempts(entry.task.id)
        work = work_of(entry.task, attempts)
        if entry.measures_nothing or work is None:
            continue
        own = [a for a in attempts if a.candidate.language == language]
        best = best_attempt(a for a in own if not outcome_of(a.evaluation).decoy())
        speedup = best.evaluation.speedup if best is not None else None
        winner = None
        if best is not None and speedup is not None and speedup.eager is not None:
            winner = WinningKernel(candidate=best.candidate, speedup=speedup.eager)
        yield TaskData(task=entry.task, language=language, target=target, work=work, winner=winner)


def work_of(task: Task, attempts: Sequence[RecordedAttempt]) -> Work | None:
    """Return the work from a profile, with all moved bytes as input, since prompts give only the sum."""
    for attempt in attempts:
        profile = attempt.profile
        moved = profile.value("minimal_bytes") if profile is not None else None
        flops = profile.value("flops") if profile is not None else None
        if moved is not None and flops is not None:
            precision = task.product_precision
            products = {precision: int(flops)} if precision is not None and flops else {}
            return Work(
                input_bytes=int(moved), weight_bytes=0, output_bytes=0, flops=int(flops), products=products
            )
    return None
