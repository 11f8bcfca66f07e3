"""Selection of metrics by their correlation with the time over many candidates of several tasks.

After CudaForge (arXiv:2511.01884, section 3.3), offline: within each task the candidates' values of a metric
are correlated with their times by rank (Spearman); metrics whose sign is the same in all tasks are kept, the
strongest first. Profiles and judges use the selection.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import ValidationError

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Record
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.records import Metric, Profile

FEWEST_CANDIDATES, FEWEST_TASKS = 5, 2  # of a task; with so many candidates, that a metric must be known in
MOST_KEPT = 24
_SHUFFLES = 2000
Values = Mapping[str, float]
Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class MetricSample:
    """A correct candidate. `group`: its task on its target; `time`: in any unit shared by the group."""

    group: str
    time: float
    values: Values


class RankedMetric(Record):
    """Correlation of a metric with the time. `strength`: the mean of |rho| over `groups`."""

    name: str
    rhos: dict[str, float]  # by group
    candidates: int
    chance: float  # of shuffled times, how many show a sign as common and a strength as large

    @property
    def strength(self) -> float:
        return sum(map(abs, self.rhos.values())) / len(self.rhos)

    @property
    def agrees(self) -> bool:
        """True if there are enough groups and the sign is the same in all of them."""
        signs = {math.copysign(1, rho) for rho in self.rhos.values() if rho}
        return len(self.rhos) >= FEWEST_TASKS and len(signs) == 1 and all(self.rhos.values())


class Selection(Record):
    """Ranking of all metrics, and the names of those that are kept."""

    kind: Kind  # of target
    chips: tuple[str, ...]
    candidates: dict[str, int]  # by group, of those that are used
    left_out: dict[str, int]  # groups with too few
    ranked: tuple[
        RankedMetric, ...
    ]  # those that agree first, by strength; what is the time in other words last
    kept: tuple[str, ...]

    def keeps(self, name: str) -> bool:
        """Return True for a kept metric; for one with too little data, whether it is shown by default."""
        if any(ranked.name == name and len(ranked.rhos) >= FEWEST_TASKS for ranked in self.ranked):
            return name in self.kept
        return CATALOGUE[name].usual


def judged_by(metrics: Iterable[Metric], selection: Selection | None) -> tuple[Metric, ...]:
    """Return the metrics shown to a judge: measures of the time always, others if they are kept."""
    return tuple(m for m in metrics if m.name not in CATALOGUE or _is_shown(m.name, selection))


def _is_shown(name: str, selection: Selection | None) -> bool:
    known = CATALOGUE[name]
    return known.of_time or (known.usual if selection is None else selection.keeps(name))


def values_of(profile: Profile) -> dict[str, float]:
    """Return one value per metric: the sum over kernels if additive, else the mean by time."""
    weights = {kernel: _time(profile, kernel) for kernel in profile.kernels}
    known = all(weight is not None for weight in weights.values())
    found: dict[str, dict[str, float]] = {}
    for metric in profile.metrics:
        if metric.name in CATALOGUE:
            found.setdefault(metric.name, {})[metric.kernel] = metric.value
    values = {}
    for name, by_kernel in found.items():
        if "" in by_kernel:  # of the whole call
            values[name] = by_kernel[""]
        elif CATALOGUE[name].adds_up:
            values[name] = sum(by_kernel.values())
        else:
            shares = [(weights.get(kernel) or 1.0) if known else 1.0 for kernel in by_kernel]
            values[name] = float(np.average(list(by_kernel.values()), weights=shares))
    return values


def _time(profile: Profile, kernel: str) -> float | None:
    duration = profile.value("duration", kernel)
    return duration if duration is not None else profile.value("traced_time", kernel)


def select(
    samples: Sequence[MetricSample], kind: Kind, chips: Iterable[str], most: int = MOST_KEPT
) -> Selection:
    """Keep at most `most` metrics; none if fewer than FEWEST_TASKS groups have enough candidates."""
    groups: dict[str, list[MetricSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    enough = {name: group for name, group in groups.items() if len(group) >= FEWEST_CANDIDATES}
    tables = {
        name: pd.DataFrame([{"time": sample.time, **sample.values} for sample in group])
        for name, group in enough.items()
    }
    names = sorted({name for group in enough.values() for sample in group for name in sample.values})
    ranked = [found for name in names if (found := _ranked(name, tables)) is not None]
    ranked.sort(key=lambda each: (CATALOGUE[each.name].of_time, not each.agrees, -each.strength, each.name))
    return Selection(
        kind=kind,
        chips=tuple(sorted(set(chips))),
        candidates={name: len(group) for name, group in enough.items()},
        left_out={name: len(group) for name, group in groups.items() if name not in enough},
        ranked=tuple(ranked),
        kept=tuple(e.name for e in ranked if e.agrees and not CATALOGUE[e.name].of_time)[:most],
    )


def _ranked(name: str, tables: Mapping[str, pd.DataFrame]) -> RankedMetric | None:
    """Correlate one metric with the time; None if it never varies."""
    rhos, pairs = {}, []
    for group, table in tables.items():
        if name not in table:
            continue
        both = table[["time", name]].dropna().rank()
        if len(both) < FEWEST_CANDIDATES or (both.nunique() < 2).any():
            continue
        times, values = (_standard(both[column].to_numpy()) for column in ("time", name))
        rhos[group] = round(float(times @ values), 12)  # what is zero must have no sign
        pairs.append((times, values))
    if not rhos:
        return None
    count = sum(len(times) for times, _ in pairs)
    return RankedMetric(name=name, rhos=rhos, candidates=count, chance=_chance(list(rhos.values()), pairs))


def _standard(ranks: np.ndarray) -> np.ndarray:
    """Standardize such that the product of two is Pearson's correlation: of ranks, Spearman's."""
    centred = ranks - ranks.mean()
    return centred / np.linalg.norm(centred)


def _chance(rhos: Sequence[float], pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the p-value of a permutation test over all groups, seeded by the data.

    P. Good, "Permutation Tests" (2000), section 3.
    """
    generator = np.random.default_rng(sum(len(times) for times, _ in pairs))
    columns = [generator.permuted(np.tile(times, (_SHUFFLES, 1)), axis=1) @ values for times, values in pairs]
    drawn = np.stack(columns, axis=1)
    common = np.abs(np.sign(drawn).sum(axis=1)) >= abs(np.sign(rhos).sum())
    as_strong = np.abs(drawn).mean(axis=1) >= np.abs(rhos).mean() - 1e-12
    return float((1 + (common & as_strong).sum()) / (1 + _SHUFFLES))


def place(cache: Path, device: str) -> Path:
    """Return the file that holds the selection for a target."""
    return cache / f"metrics-{kind_of(device)}.json"


def kind_of(device: str) -> Kind:
    return "cpu" if device == "cpu" else "cuda"


def stored(cache: Path, device: str) -> Selection | None:
    """Return the stored selection, if any. Raises StorageError if it cannot be read."""
    file = place(cache, device)
    try:
        return Selection.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StorageError(
            f"{file} cannot be read ({type(error).__name__})",
            "delete it, or run `kernelwright metrics` again",
        ) from None
