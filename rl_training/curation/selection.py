"""Which samples are worth learning from."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.rl_training.curation.samples import Dropped, Sample, TaskSamples
from kernelwright.rl_training.similarity import likeness, nearest, reference_shingles, shingles

_CAP = 2  # times the median of the families' samples, that one family may have


@dataclass(frozen=True, eq=False)
class Chosen:
    """A sample that is kept. `concise`: it has reasoning, the shortest of its task, and is the fastest."""

    task: TaskSamples
    sample: Sample
    concise: bool

    @property
    def family(self) -> str:
        return self.task.data.family


def choose(tasks: Sequence[TaskSamples], most: int, alike: float, dropped: Dropped) -> list[Chosen]:
    """At most so many a task, the fastest first, none a near-duplicate of another."""
    chosen: list[Chosen] = []
    for task in tasks:
        dropped["not correct"] += len(task.samples) - len(task.correct)
        concise = _concise(task.correct)
        kept: list[Chosen] = []
        for sample in _in_order(task.correct, concise):
            if sample.written.reasoning and sample is not concise:
                dropped["its reasoning is not the shortest of its task, or the shortest not the fastest"] += 1
            elif _known(task, sample, [*chosen, *kept], alike):
                dropped["a near-duplicate of one that is kept"] += 1
            elif len(kept) == most:
                dropped[f"its task has {most} faster ones"] += 1
            else:
                kept.append(Chosen(task, sample, sample is concise))
        chosen += kept
    return chosen


def balanced(chosen: Sequence[Chosen], dropped: Dropped) -> list[Chosen]:
    """No family has more than twice the median of what families have; its slowest samples go."""
    counts = Counter(one.family for one in chosen)
    if not counts:
        return []
    cap = max(1, int(_CAP * statistics.median(counts.values())))
    kept: list[Chosen] = []
    for one in sorted(chosen, key=lambda one: -one.sample.low):
        if sum(other.family == one.family for other in kept) < cap:
            kept.append(one)
        else:
            dropped[f"its family of operators has {cap} faster ones"] += 1
    return [one for one in chosen if one in kept]


def _concise(correct: Sequence[Sample]) -> Sample | None:
    """The sample with the shortest reasoning, where none with reasoning is faster for certain (ConCuR)."""
    reasoned = [sample for sample in correct if sample.written.reasoning]
    shortest = min(reasoned, key=lambda sample: (len(sample.written.reasoning), -sample.low), default=None)
    if shortest is None or shortest.speedup is None:
        return None
    return shortest if shortest.speedup.high >= max(sample.low for sample in reasoned) else None


def _in_order(correct: Sequence[Sample], first: Sample | None) -> list[Sample]:
    """The concise one, then by speedup."""
    return sorted(correct, key=lambda sample: (sample is not first, -sample.low))


def _known(task: TaskSamples, sample: Sample, kept: Sequence[Chosen], alike: float) -> bool:
    """Whether a kept kernel is a near-duplicate: of the same task, or of one whose reference is one, too.

    Kernels of different functions are not: what they have in common is what all such files begin with.
    """
    reference = reference_shingles(task.data.task.source)
    others = (
        (one, shingles(one.sample.candidate.source))
        for one in kept
        if likeness(reference, reference_shingles(one.task.data.task.source), alike) > 0
    )
    return bool(nearest(shingles(sample.candidate.source), others, alike))
