"""Tables of an evaluation."""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.kernelbench.records import Interval, Record
from kernelwright.rl_training.evaluation.scores import (
    FAST,
    GradedSample,
    PolicyScores,
    best_at_k,
    by_family,
    geomean,
    scores,
)
from kernelwright.rl_training.templating import template

_TEMPLATES = Path(__file__).parent / "templates"
_DRAWS = 2000


class EvaluatedPolicy(Record):
    """Scores of one policy. `name`: its folder, or its name on the Hub."""

    name: str
    overall: PolicyScores
    families: dict[str, PolicyScores]


class EvaluationReport(Record):
    """Content of evaluation.json. `ratio`: the policy's best@1 over the base's best@n, by task."""

    schema_version: int = 1
    split: str
    chip: str
    device: str
    ks: tuple[int, ...]
    policy: EvaluatedPolicy
    base: EvaluatedPolicy | None = None
    ratio: Interval | None = None


def evaluated(name: str, samples: Sequence[GradedSample], ks: Sequence[int]) -> EvaluatedPolicy:
    """Return the scores of a policy, over all tasks and by family."""
    return EvaluatedPolicy(name=name, overall=scores(samples, ks), families=by_family(samples, ks))


def ratio(policy: Sequence[GradedSample], base: Sequence[GradedSample], n: int) -> Interval | None:
    """Return best@1 of a policy over best@n of another: the geometric mean over tasks that both have.

    The interval is of 95%, by a bootstrap over tasks. None if they share no task with enough replies.
    """
    logs = []
    for task in sorted({sample.task for sample in policy}):
        mine, others = ([s for s in some if s.task == task and s.known] for some in (policy, base))
        if mine and len(others) >= n:
            logs.append(math.log(best_at_k(mine, 1) / best_at_k(others, n)))
    if not logs:
        return None
    rng = random.Random(0)
    drawn = sorted(math.fsum(rng.choices(logs, k=len(logs))) / len(logs) for _ in range(_DRAWS))
    low, high = drawn[round(0.025 * (_DRAWS - 1))], drawn[round(0.975 * (_DRAWS - 1))]
    return Interval(median=geomean([math.exp(x) for x in logs]), low=math.exp(low), high=math.exp(high))


def rows(found: PolicyScores, ks: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Return lines of a table of one policy: a name, and a cell for each k."""

    def cells(values: Mapping[int, float], share: bool) -> list[str]:
        form = "{:.0%}" if share else "{:.2f}"
        return [form.format(values[k]) if k in values else "–" for k in ks]

    return [
        ("pass@k", cells(found.pass_at, True)),
        ("best@k, × eager", cells(found.best_at, False)),
        *((f"fast_{p:g}@k", cells(found.fast.get(p, {}), True)) for p in FAST),
    ]


def markdown(report: EvaluationReport) -> str:
    """Return the report as Markdown."""
    return template("evaluation.md", _TEMPLATES).render(report=report, rows=rows)
