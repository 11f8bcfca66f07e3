"""Samples: the distinct candidates of runs, with prompt, reply, reasoning and the outcome that counts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernelwright.kernelbench.records import Candidate, Interval, Language
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt
from kernelwright.rl_training.environment.task_data import TaskData, work_of
from kernelwright.rl_training.outcome import DECOY_SHARE, Outcome, counting
from kernelwright.rl_training.replies import MODEL_AUTHOR, PromptedReply, recorded, without_model

Dropped = Counter[str]  # why -> how many


@dataclass(frozen=True)
class Sample:
    run: str
    candidate: Candidate
    outcome: Outcome
    written: PromptedReply

    @property
    def speedup(self) -> Interval | None:
        """Speedup over eager; None if it is not correct."""
        found = self.outcome.speedup if self.outcome.kind == "correct" else None
        return found.eager if found is not None else None

    @property
    def low(self) -> float:
        """Score for ranking: the lower bound of the speedup; 0 if it is not correct."""
        return self.speedup.low if self.speedup is not None else 0.0


@dataclass(frozen=True)
class TaskSamples:
    """All distinct candidates for one task on one machine, correct or not."""

    data: TaskData
    samples: tuple[Sample, ...]

    @property
    def correct(self) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if sample.speedup is not None)

    @property
    def difficulty(self) -> int | None:
        """Characters of the shortest reasoning that led to a correct kernel (ConCuR); None without any."""
        lengths = [len(s.written.reasoning) for s in self.correct if s.written.reasoning]
        return min(lengths, default=None)


@dataclass
class SampleSet:
    tasks: list[TaskSamples] = field(default_factory=list)
    attempts: int = 0
    dropped: Dropped = field(default_factory=Counter)


def read(runs: Iterable[RunDatabase]) -> SampleSet:
    """Read the samples of runs. A task measured on the same chip in several runs is one task.

    Raises StorageError.
    """
    reading = SampleSet()
    found: dict[tuple[str, str, str], TaskSamples] = {}
    for run in runs:
        target, calls = run.run.target, run.llm_calls()
        for entry in run.tasks():
            attempts = run.attempts(entry.task.id)
            reading.attempts += len(attempts)
            work = work_of(entry.task, attempts)
            if entry.measures_nothing:
                reading.dropped["its task measures nothing"] += len(attempts)
                continue
            if work is None:
                reading.dropped["its task has no profile, and so no prompt"] += len(attempts)
                continue
            language = _language(attempts)
            data = TaskData(task=entry.task, language=language, target=target, work=work)
            samples = _samples(run.run_id, data, attempts, calls, reading.dropped)
            key = entry.task.id, entry.task.sha256, target.fingerprint.chip
            before = found.get(key)
            found[key] = (
                _joined(before, samples, reading.dropped) if before else TaskSamples(data, tuple(samples))
            )
    reading.tasks = list(found.values())
    return reading


def _samples(
    run: str, data: TaskData, attempts: Sequence[RecordedAttempt], calls: Sequence[LlmCall], dropped: Dropped
) -> list[Sample]:
    written = recorded(data.task.id, attempts, calls)
    samples: dict[str, Sample] = {}
    for attempt in attempts:
        made = attempt.candidate
        outcome = counting([a for a in attempts if a.candidate.sha256 == made.sha256])
        if attempt.confirms or made.sha256 in samples:
            dropped["the same file again, or a second measurement"] += 1
        elif made.language == "torch":
            dropped["no kernels of its own"] += 1
        elif outcome.decoy():
            dropped[f"correct, but with less than {DECOY_SHARE:.0%} of a call in its own kernels"] += 1
        elif outcome.kind in ("infrastructure", "unmeasured"):
            dropped["not measured"] += 1
        elif (said := written.get(attempt.id)) is not None:
            samples[made.sha256] = Sample(run, made, outcome, said)
        elif made.author.startswith(MODEL_AUTHOR):
            dropped["the model's reply was not found"] += 1
        else:
            samples[made.sha256] = Sample(run, made, outcome, without_model(data, made))
    return list(samples.values())


def _joined(before: TaskSamples, more: Sequence[Sample], dropped: Dropped) -> TaskSamples:
    """Merge samples of a task; of a candidate in both, the slower measurement or the failure counts."""
    samples = {sample.candidate.sha256: sample for sample in before.samples}
    for sample in more:
        known = samples.get(sample.candidate.sha256)
        if known is not None:
            dropped["the same file again, or a second measurement"] += 1
        if known is None or sample.low < known.low:
            samples[sample.candidate.sha256] = sample
    return TaskSamples(before.data, tuple(samples.values()))


def _language(attempts: Sequence[RecordedAttempt]) -> Language:
    """Return the language of most kernels."""
    counts = Counter(a.candidate.language for a in attempts if a.candidate.language != "torch")
    return counts.most_common(1)[0][0] if counts else "cpp"
