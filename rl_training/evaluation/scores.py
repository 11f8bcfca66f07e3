"""Scores of a policy from n graded replies to each task: pass@k, best@k and fast_p.

Of the n replies to a task, c are right (correct, by kernels of their own). Estimated without bias from n
replies, over all choices of k of them (Chen et al., arXiv:2107.03374):

    pass@k    1 - C(n-c, k) / C(n, k): that one of k is right
    fast_p@k  the same for a speedup over eager surely above p: the lower bound of its interval
    best@k    the speedup of the fastest of k, the geometric mean; 1.0, the reference's, if none is right

Replies without a verdict are not among the n, so a task may have fewer than k; then it is not in that mean.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import Field

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.outcome import Outcome

FAST = (1.0, 2.0)  # the p of fast_p


class GradedSample(Record):
    """A graded reply. `confirmed`: the lower bound of a second measurement, of a right one.

    Of k replies the fastest is picked by the first measurement and counts by the second, or a policy would
    gain by having been measured often.
    """

    task: str
    family: str
    number: int
    outcome: Outcome
    confirmed: float | None = None

    @property
    def known(self) -> bool:
        return self.outcome.kind not in ("infrastructure", "unmeasured")

    @property
    def low(self) -> float:
        """The lower bound of its speedup over eager; 0 if it is not right."""
        if self.outcome.kind != "correct" or self.outcome.decoy():
            return 0.0
        return self.outcome.low("eager") or 0.0


class PolicyScores(Record):
    """Scores over tasks, by k. `fast`: by p, then by k. A mean over no task is left out."""

    tasks: int
    replies: int
    without_verdict: int
    cheats: int
    pass_at: dict[int, float] = Field(default_factory=dict)
    best_at: dict[int, float] = Field(default_factory=dict)
    fast: dict[float, dict[int, float]] = Field(default_factory=dict)


def scores(samples: Iterable[GradedSample], ks: Sequence[int]) -> PolicyScores:
    """Return the scores of one policy's replies."""
    by_task: dict[str, list[GradedSample]] = {}
    for sample in samples:
        by_task.setdefault(sample.task, []).append(sample)
    given = [sample for some in by_task.values() for sample in some]
    known = {task: [sample for sample in some if sample.known] for task, some in by_task.items()}

    def mean(
        value: Callable[[Sequence[GradedSample], int], float], geometric: bool = False
    ) -> dict[int, float]:
        found = {}
        for k in ks:
            values = [value(some, k) for some in known.values() if len(some) >= k]
            if values:
                found[k] = geomean(values) if geometric else math.fsum(values) / len(values)
        return found

    return PolicyScores(
        tasks=len(by_task),
        replies=len(given),
        without_verdict=sum(not sample.known for sample in given),
        cheats=sum(sample.outcome.kind == "cheated" for sample in given),
        pass_at=mean(lambda some, k: pass_at_k(len(some), _above(some, 0.0), k)),
        best_at=mean(best_at_k, geometric=True),
        fast={p: mean(lambda some, k, p=p: pass_at_k(len(some), _above(some, p), k)) for p in FAST},  # type: ignore[misc]
    )


def by_family(samples: Sequence[GradedSample], ks: Sequence[int]) -> dict[str, PolicyScores]:
    """Return the scores of each family of operators."""
    families = sorted({sample.family for sample in samples})
    return {family: scores([s for s in samples if s.family == family], ks) for family in families}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that one of k of n replies, of which c are right, is right."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def best_at_k(some: Sequence[GradedSample], k: int) -> float:
    """Return the speedup of the fastest of k of a task's replies."""
    picks = [sample.low for sample in some]
    values = [max(1.0, _counted(sample)) for sample in some]
    return expected_best(picks, values, k)


def expected_best(picks: Sequence[float], values: Sequence[float], n: int) -> float:
    """Return the geometric mean, over all choices of n of these files, of the picked file's value.

    Estimated as pass@k from more than k samples (Chen et al., arXiv:2107.03374).
    """
    order = sorted(range(len(picks)), key=lambda place: picks[place])
    choices = math.comb(len(picks), n)
    logs = (
        math.comb(rank, n - 1) / choices * math.log(values[place])  # n - 1 from those that it beats
        for rank, place in enumerate(order)
    )
    return math.exp(math.fsum(logs))


def geomean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else math.nan


def flat(found: PolicyScores, prefix: str) -> Mapping[str, float]:
    """Return scores as numbers by name, for curves."""
    numbers = {f"{prefix}pass@{k}": value for k, value in found.pass_at.items()}
    numbers |= {f"{prefix}best@{k}": value for k, value in found.best_at.items()}
    for p, values in found.fast.items():
        numbers |= {f"{prefix}fast_{p:g}@{k}": value for k, value in values.items()}
    return numbers | {f"{prefix}without_verdict": float(found.without_verdict)}


def _above(some: Sequence[GradedSample], p: float) -> int:
    return sum(sample.low > p for sample in some)


def _counted(sample: GradedSample) -> float:
    """Return the speedup that a picked reply counts with; 0 if it is not right, or was not a second time."""
    return (sample.confirmed or 0.0) if sample.low else 0.0
