"""Lessons: techniques that were advised, and the measured gain, time before / after.

Collected across the tasks of a run, or of several, for prompts and for the report.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.operator_families import operator_families
from kernelwright.kernelbench.records import Language, Task
from kernelwright.profiling.records import Profile
from kernelwright.results import formatting
from kernelwright.results.lessons.calibration import FASTER, corrects, measured_gain
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt

COLUMNS = ("technique", "language", "operators", "tried", "failed", "faster", "gain, median", "from, to")
_LINES = 6
_ALIKE = 4.0  # the factor between two sizes of one class


@dataclass(frozen=True)
class Effect:
    """One change of one correct kernel. `gain`: time before / after; None if all kernels with it failed."""

    technique: str
    language: Language
    task: str
    families: frozenset[str]
    chip: str
    gain: float | None
    bytes_moved: float | None = None  # at least, by a call of the task


@dataclass(frozen=True)
class Lesson:
    """All measurements of one technique in one language."""

    technique: str
    language: Language
    effects: tuple[Effect, ...]

    @property
    def gains(self) -> list[float]:
        return sorted(effect.gain for effect in self.effects if effect.gain is not None)

    @property
    def faster(self) -> int:
        return sum(gain > FASTER for gain in self.gains)

    @property
    def median(self) -> float | None:
        """Median gain over the changes that worked."""
        return statistics.median(self.gains) if self.gains else None

    @property
    def promise(self) -> float:
        """Probability that it helps the next time, by Laplace's rule of succession."""
        return (self.faster + 1) / (len(self.effects) + 2)

    @property
    def families(self) -> list[str]:
        return sorted(frozenset().union(*(effect.families for effect in self.effects)))

    def cells(self) -> tuple[str, ...]:
        """Return one row of a table, in the order of COLUMNS."""
        gains = self.gains
        return (
            self.technique,
            self.language,
            ", ".join(self.families),
            str(len(self.effects)),
            str(len(self.effects) - len(gains)),
            str(self.faster),
            formatting.ratio(self.median),
            f"{formatting.ratio(gains[0])} to {formatting.ratio(gains[-1])}" if gains else formatting.NOTHING,
        )

    def __str__(self) -> str:
        tried, gains = len(self.effects), self.gains
        failed = f", {tried - len(gains)} failed" if len(gains) < tried else ""
        said = f"{self.technique}, {', '.join(self.families)}: {self.faster} of {tried} faster{failed}"
        if not gains:
            return said
        spread = f" ({gains[0]:.2f} to {gains[-1]:.2f})" if len(gains) > 1 else ""
        return f"{said}; time before / after {self.median:.2f}{spread}"


def effects_of(database: RunDatabase) -> Iterator[Effect]:
    """Yield the effects in a run. Raises StorageError if it cannot be read."""
    for entry in database.tasks():
        yield from effects_in(entry.task, database.attempts(entry.task.id))


def effects_in(task: Task, attempts: Iterable[RecordedAttempt]) -> list[Effect]:
    """Return the effects among the attempts at a task."""
    tried = [attempt for attempt in attempts if not attempt.confirms]
    return [found for attempt in tried if (found := _effect(task, attempt, tried)) is not None]


def _effect(task: Task, attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> Effect | None:
    """Return the effect of an attempt among those of its task; None if no technique was advised.

    A kernel by another coder, or in another language, is no effect of the technique; nor is a repeat. What
    corrects a kernel with it has its effect there.
    """
    advice, made = attempt.advice, attempt.candidate
    if advice is None or advice.technique in ("", "other") or corrects(attempt, attempts):
        return None
    parent = next((a.candidate for a in attempts if a.candidate.sha256 in made.parents), None)
    if parent is None or (parent.author, parent.language) != (made.author, made.language):
        return None
    if any(a.id < attempt.id and a.candidate.sha256 == made.sha256 for a in attempts):
        return None
    return Effect(
        technique=advice.technique,
        language=attempt.candidate.language,
        task=task.id,
        families=operator_families(task),
        chip=attempt.evaluation.target.fingerprint.chip,
        gain=measured_gain(attempt, attempts),
        bytes_moved=bytes_moved(attempt.profile),
    )


def bytes_moved(profile: Profile | None) -> float | None:
    """Return the bytes of the inputs, weights and outputs of a call; None without a profile."""
    metrics = profile.metrics if profile is not None else ()
    return next((metric.value for metric in metrics if metric.name == "minimal_bytes"), None)


def lessons_from(effects: Iterable[Effect]) -> list[Lesson]:
    """Return lessons, the techniques most likely to help first."""
    grouped: dict[tuple[str, Language], list[Effect]] = {}
    for effect in effects:
        grouped.setdefault((effect.technique, effect.language), []).append(effect)
    lessons = [Lesson(*key, tuple(found)) for key, found in grouped.items()]
    return sorted(lessons, key=lambda lesson: (-lesson.promise, -(lesson.median or 0.0), lesson.technique))


@dataclass(frozen=True)
class Expectation:
    """Expected gain of a technique in tasks of a class: geometric mean of time before / after.

    Failures count as 1, since they are not kept.
    """

    mean: float
    count: int

    @property
    def likely(self) -> float:
        """Expected gain the next time, with two further changes without effect as a prior."""
        return self.mean ** (self.count / (self.count + 2))


def expectations(
    task: Task, language: Language, chip: str, moved: float | None, effects: Iterable[Effect]
) -> dict[str, Expectation]:
    """Return the expectation of each technique from other tasks of the class.

    A class: operators of the same families, sizes within a factor of 4. `moved`: bytes that a call of the
    task moves at least.
    """
    families = operator_families(task)
    found: dict[str, list[float]] = {}
    for effect in effects:
        alike = (effect.language, effect.chip) == (language, chip) and effect.families & families
        if effect.task == task.id or not alike or not moved or not effect.bytes_moved:
            continue
        if abs(math.log(effect.bytes_moved / moved)) <= math.log(_ALIKE):
            found.setdefault(effect.technique, []).append(effect.gain or 1.0)
    return {name: Expectation(statistics.geometric_mean(gains), len(gains)) for name, gains in found.items()}


def lines_for(task: Task, language: Language, chip: str, effects: Iterable[Effect]) -> tuple[str, ...]:
    """Return the few most helpful lessons for a task: same language, chip and operator families.

    Lessons that helped come first, then those that never did. The task's own kernels are left out, since
    prompts show them.
    """
    families = operator_families(task)
    close = [
        effect
        for effect in effects
        if effect.language == language
        and effect.chip == chip
        and effect.task != task.id
        and effect.families & families
    ]
    lessons = lessons_from(close)
    helped = [lesson for lesson in lessons if lesson.faster]
    never = [lesson for lesson in lessons if not lesson.faster and len(lesson.effects) > 1]
    return tuple(str(lesson) for lesson in [*helped[: _LINES - 2], *never[:2]])
