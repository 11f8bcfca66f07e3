"""Selection of the samples worth learning from."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.rl_training.curation.samples import Dropped, Sample, TaskSamples
from kernelwright.rl_training.similarity import likeness, nearest, reference_shingles, shingles

_CAP = 2  # times the median of the families' samples, that one family may have


@dataclass(frozen=True, eq=False)
class SelectedSample:
    """A kept sample. `concise`: it has the shortest reasoning of its task, and is the fastest."""

    task: TaskSamples
    sample: Sample
    concise: bool

    @property
    def family(self) -> str:
        return self.task.data.family


def choose(tasks: Sequence[TaskSamples], most: int, alike: float, dropped: Dropped) -> list[SelectedSample]:
    """Choose at most `most` samples per task, the fastest first, none a near-duplicate of another."""
    chosen: list[SelectedSample] = []
    for task in tasks:
        dropped["not correct"] += len(task.samples) - len(task.correct)
        concise = _concise(task.correct)
        kept: list[SelectedSample] = []
        for sample in _in_order(task.correct, concise):
            if sample.written.reasoning and sample is not concise:
                dropped["its reasoning is not the shortest of its task, or the shortest not the fastest"] += 1
            elif _known(task, sample, [*chosen, *kept], alike):
                dropped["a near-duplicate of a kept one"] += 1
            elif len(kept) == most:
                dropped[f"its task has {most} faster ones"] += 1
            else:
                kept.append(SelectedSample(task, sample, sample is concise))
        chosen += kept
    return chosen


def balanced(chosen: Sequence[SelectedSample], dropped: Dropped) -> list[SelectedSample]:
    """Balance families: none keeps more than twice the median count; its slowest samples are dropped."""
    counts = Counter(one.family for one in chosen)
    if not counts:
        return []
    cap = max(1, int(_CAP * statistics.median(counts.values())))
    kept: list[SelectedSample] = []
    for one in sorted(chosen, key=lambda one: -one.sample.low):
        if sum(other.family == one.family for other in kept) < cap:
            kept.append(one)
        else:
            dropped[f"its family of operators has {cap} faster ones"] += 1
    return [one for one in chosen if one in kept]


def _concise(correct: Sequence[Sample]) -> Sample | None:
    """Return the sample with the shortest reasoning, if none with reasoning is surely faster (ConCuR)."""
    reasoned = [sample for sample in correct if sample.written.reasoning]
    shortest = min(reasoned, key=lambda sample: (len(sample.written.reasoning), -sample.low), default=None)
    if shortest is None or shortest.speedup is None:
        return None
    return shortest if shortest.speedup.high >= max(sample.low for sample in reasoned) else None


def _in_order(correct: Sequence[Sample], first: Sample | None) -> list[Sample]:
    """Return the concise sample, then the others by speedup."""
    return sorted(correct, key=lambda sample: (sample is not first, -sample.low))


def _known(task: TaskSamples, sample: Sample, kept: Sequence[SelectedSample], alike: float) -> bool:
    """Return True if a kept kernel is a near-duplicate: of this task, or of one with a similar reference.

    Kernels of different functions are not: what they share is the boilerplate of all such files.
    """
    reference = reference_shingles(task.data.task.source)
    others = (
        (one, shingles(one.sample.candidate.source))
        for one in kept
        if likeness(reference, reference_shingles(one.task.data.task.source), alike) > 0
    )
    return bool(nearest(shingles(sample.candidate.source), others, alike))
