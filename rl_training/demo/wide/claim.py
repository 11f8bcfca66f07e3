"""The claim of a demo over the wide space: written down before its seeds are run, and checked afterwards.

Each comparison is paired by task: the logarithm of what one method reached over what the other did, as a
mean over seeds, with a 95% interval from a bootstrap over tasks. Held-out tasks have a sequence of operations
each, so they are taken to be independent.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.results.store.folder import write_atomically
from kernelwright.rl_training.demo.wide.settings import WideSettings
from kernelwright.rl_training.demo.wide.tasks import Kind
from kernelwright.rl_training.demo.wide.trial import SHARED, WideResult
from kernelwright.rl_training.rewards import state_io

POLICY, CHANCE, VALUE, SEARCH = "policy", "random schedules", "value model", "the coder's search"
_RESAMPLES = 10_000
_SPREAD = 1.03  # of best of 16 over best of 1: a policy that has not collapsed onto one schedule
Verdict = Literal["holds", "does not hold", "not shown"]


class PairedComparison(Record):
    """`ahead` among n is to be more than `least` times as fast as `behind` among m."""

    ahead: str
    n: int
    behind: str
    m: int
    least: float = 1.0

    @property
    def text(self) -> str:
        more = f" by {self.least - 1:.0%}" if self.least > 1 else ""
        return f"{self.ahead}, best of {self.n}, above {self.behind}, best of {self.m}{more}"


class PolicyClaim(Record):
    """Comparisons that are claimed of a demo with these settings. It holds if each of them does."""

    settings: WideSettings
    comparisons: tuple[PairedComparison, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def text(self) -> str:
        listed = "\n".join(f"{number}. {each.text}" for number, each in enumerate(self.comparisons, 1))
        seeds = range(self.settings.first_seed, self.settings.first_seed + self.settings.seeds)
        return (
            "On held-out tasks, paired by task, as means over seeds "
            f"{', '.join(map(str, seeds))}, 95% intervals lie above:\n\n{listed}\n\n"
            f"A training makes at most {self.settings.evaluations} evaluations, "
            f"{self.settings.equal - self.settings.claimed} for each of the {self.settings.held_tasks} "
            f"held-out tasks: so random schedules and the coder's search have {self.settings.equal}."
        )


def claim_of(settings: WideSettings) -> PolicyClaim:
    n, equal, most = settings.claimed, settings.equal, max(settings.tries)
    return PolicyClaim(
        settings=settings,
        comparisons=(
            PairedComparison(ahead=POLICY, n=n, behind=CHANCE, m=equal),
            PairedComparison(ahead=POLICY, n=n, behind=VALUE, m=n),
            PairedComparison(ahead=POLICY, n=n, behind=SEARCH, m=equal),
            PairedComparison(ahead=POLICY, n=most, behind=POLICY, m=1, least=_SPREAD),
        ),
    )


def registered(settings: WideSettings, folder: Path) -> PolicyClaim:
    """Return the claim written in the folder, or write it now. Raises UsageError if it was another."""
    path, now = folder / "claim.json", claim_of(settings)
    before = state_io.read(path, PolicyClaim)
    if before is not None and before != now:
        raise UsageError(
            f"{path} claims something else", "use the settings it was made with, or another --out"
        )
    if before is None:
        if (folder / "results.jsonl").exists():
            raise UsageError(f"{folder} holds results, but no claim made before them", "use another --out")
        state_io.write(path, now)
        write_atomically(folder / "claim.md", f"# Claimed before the seeds were run\n\n{now.text}\n")
    return now


@dataclass(frozen=True)
class PairedResult:
    """A comparison with what came out. `ratio`, `low` and `high`: factors of speed; `by_seed`: its ratio."""

    comparison: PairedComparison
    kind: Kind
    tasks: int
    ratio: float
    low: float
    high: float
    by_seed: Mapping[int, float]

    @property
    def verdict(self) -> Verdict:
        if self.low > self.comparison.least:
            return "holds"
        return "does not hold" if self.high < self.comparison.least else "not shown"


def compared(
    claim: PolicyClaim, results: Sequence[WideResult], kind: Kind = "held out"
) -> list[PairedResult]:
    """Hold a claim against results on tasks of a kind. Raises UsageError for those of another claim."""
    if any(each.claim != claim.sha256 for each in results):
        raise UsageError("some results were made under another claim", "use another --out")
    own = [each for each in results if each.kind == kind]
    return [found for each in claim.comparisons if (found := _compared(each, own, kind)) is not None]


def _compared(comparison: PairedComparison, results: Sequence[WideResult], kind: Kind) -> PairedResult | None:
    ahead, behind = (
        _logs(results, method, n)
        for method, n in ((comparison.ahead, comparison.n), (comparison.behind, comparison.m))
    )
    by_task: dict[str, dict[int, float]] = {}
    for (seed, task), value in ahead.items():
        other = behind.get((seed, task), behind.get((SHARED, task)))
        if other is not None:
            by_task.setdefault(task, {})[seed] = value - other
    if not by_task:
        return None
    means = [math.fsum(found.values()) / len(found) for found in by_task.values()]
    low, high = interval(means)
    seeds = sorted({seed for found in by_task.values() for seed in found})
    each = {seed: [found[seed] for found in by_task.values() if seed in found] for seed in seeds}
    return PairedResult(
        comparison,
        kind,
        len(means),
        math.exp(math.fsum(means) / len(means)),
        math.exp(low),
        math.exp(high),
        {seed: math.exp(math.fsum(values) / len(values)) for seed, values in each.items()},
    )


def _logs(results: Sequence[WideResult], method: str, n: int) -> dict[tuple[int, str], float]:
    return {
        (each.seed, each.task): math.log(each.best_of[n])
        for each in results
        if each.method == method and n in each.best_of
    }


def interval(values: Sequence[float], resamples: int = _RESAMPLES) -> tuple[float, float]:
    """Return the 95% interval of a mean by the percentile bootstrap, of these values in any order."""
    found = np.sort(np.asarray(values, dtype=float))
    rng = np.random.default_rng(0)
    means = found[rng.integers(0, len(found), (resamples, len(found)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
