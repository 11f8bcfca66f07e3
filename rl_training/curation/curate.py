"""The whole of curation: from opened runs to a folder with a data set."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record, Task
from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training import new_folder
from kernelwright.rl_training.curation import parquet
from kernelwright.rl_training.curation.computations import Computations, SameComputation
from kernelwright.rl_training.curation.provenance import provenance
from kernelwright.rl_training.curation.rows import Row, preference_rows, ranked_row, sft_row, task_row
from kernelwright.rl_training.curation.samples import Dropped, SampleSet, TaskSamples, read
from kernelwright.rl_training.curation.selection import SelectedSample, balanced, choose
from kernelwright.rl_training.curation.split import closest, contaminated, held_out, held_out_by_operator
from kernelwright.rl_training.similarity import ALIKE, reference_shingles, shingles
from kernelwright.rl_training.templating import template

TEMPLATES = Path(__file__).parent / "templates"
SPLITS = ("train", "test")
CONFIGS = ("sft", "preferences", "ranked", "tasks")


class CurationSettings(Record):
    k: int = Field(default=2, ge=1)  # winners a task at most
    held_out_share: float = Field(default=0.2, ge=0, lt=1)
    held_out_by: Literal["combination", "operator"] = "combination"
    seed: int = 0
    alike: float = Field(default=ALIKE, gt=0, le=1)


@dataclass(frozen=True)
class SplitPart:
    """One part of the data set: for training, or held out."""

    tasks: list[TaskSamples]
    chosen: list[SelectedSample]

    def rows(self) -> dict[str, list[Row]]:
        """Return the rows by the names of CONFIGS."""
        ranked = [row for task in self.tasks if (row := ranked_row(task)) is not None]
        return {
            "sft": [sft_row(one) for one in self.chosen],
            "preferences": [row for task in self.tasks if task.samples for row in preference_rows(task)],
            "ranked": ranked,
            "tasks": [task_row(task) for task in self.tasks],
        }

    @property
    def families(self) -> Counter[str]:
        return Counter(one.family for one in self.chosen)


@dataclass(frozen=True)
class Curated:
    settings: CurationSettings
    attempts: int
    train: SplitPart
    test: SplitPart
    dropped: Dropped
    contaminated: dict[str, str]  # task id -> evaluation task
    evaluation_tasks: int
    computed: bool  # whether tasks were compared by what they compute
    same: list[SameComputation]
    not_compared: dict[str, str]  # task id -> why its outputs could not be
    runs: list[Row] = field(default_factory=list)

    @property
    def closest_references(self) -> tuple[str, str, float] | None:
        def of(part: SplitPart) -> dict[str, frozenset[int]]:
            return {one.data.task.id: reference_shingles(one.data.task.source) for one in part.tasks}

        return closest(of(self.train), of(self.test))

    @property
    def closest_kernels(self) -> tuple[str, str, float] | None:
        def of(part: SplitPart) -> dict[str, frozenset[int]]:
            return {
                f"{one.task.data.task.id} {one.sample.candidate.sha256[:8]}": shingles(
                    one.sample.candidate.source
                )
                for one in part.chosen
            }

        return closest(of(self.train), of(self.test))


def curate(
    runs: Sequence[RunDatabase],
    evaluation: Sequence[Task],
    settings: CurationSettings,
    computations: Computations | None = None,
) -> Curated:
    """Curate runs into a data set. `computations`: None compares tasks by their text alone.

    Raises UsageError if there is nothing to learn from, or nothing can be held out; StorageError.
    """
    reading = read(runs)
    dropped = reading.dropped
    _require_correct(reading.tasks, reading, runs)
    out = contaminated(reading.tasks, evaluation, settings.alike)
    left = [one.data.task for one in reading.tasks if one.data.task.id not in out]
    same = computations.same(evaluation, left) if computations is not None else []
    out |= {pair.other: pair.one for pair in same}
    tasks = []
    for task in reading.tasks:
        if task.data.task.id in out:
            dropped["its task is on the evaluation list, or similar to one on it"] += len(task.samples)
        elif task.correct:
            tasks.append(task)
        else:
            dropped["its task has no correct kernel"] += len(task.samples)
    if not tasks:
        raise UsageError(
            f"all {len(out)} tasks with correct kernels are on the evaluation list, or similar to one on it",
            "give runs of other tasks, or another --evaluation-list",
        )
    kept = [one.data.task for one in tasks]
    if computations is not None and settings.held_out_share > 0:
        same += computations.same(kept, kept)
    ids = {(pair.one, pair.other) for pair in same}
    choose_held = held_out_by_operator if settings.held_out_by == "operator" else held_out
    held = choose_held(tasks, settings.held_out_share, settings.seed, settings.alike, ids)
    rest = [task for task in tasks if task not in held]
    train = balanced(choose(rest, settings.k, settings.alike, dropped), dropped)
    test = choose(held, settings.k, settings.alike, dropped)
    return Curated(
        settings=settings,
        attempts=reading.attempts,
        train=SplitPart(rest, train),
        test=SplitPart(held, test),
        dropped=+dropped,
        contaminated=out,
        evaluation_tasks=len(evaluation),
        computed=computations is not None,
        same=_each_once(same),
        not_compared=dict(computations.unknown) if computations is not None else {},
        runs=[_of_run(run) for run in runs],
    )


def write(curated: Curated, folder: Path, command: str) -> dict[str, object]:
    """Write the files of a data set into a new folder; return their content for `--json`.

    Raises StorageError, UsageError, MissingPrerequisite.
    """
    parquet.require()
    new_folder.begin(folder)
    counts: dict[str, dict[str, int]] = {config: {} for config in CONFIGS}
    for split, part in zip(SPLITS, (curated.train, curated.test), strict=True):
        for config, rows in part.rows().items():
            counts[config][split] = len(rows)
            if rows:
                parquet.write(folder / config / f"{split}.parquet", rows)
    hashes = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*/*.parquet"))
    }
    values = {
        "curated": curated,
        "counts": counts,
        "hashes": hashes,
        "command": command,
        "configs": CONFIGS,
        "provenance": provenance([*curated.train.tasks, *curated.test.tasks], counts),
    }
    for name in ("README.md", "DATASHEET.md"):
        new_folder.write(folder / name, template(name, TEMPLATES).render(**values))
    return {
        "schema": 1,
        "folder": str(folder),
        "attempts": curated.attempts,
        "rows": counts,
        "families": {"train": dict(curated.train.families), "test": dict(curated.test.families)},
        "dropped": dict(curated.dropped.most_common()),
        "contaminated": curated.contaminated,
        "same": [[pair.one, pair.other, pair.by] for pair in curated.same],
        "files": hashes,
    }


def _each_once(pairs: Sequence[SameComputation]) -> list[SameComputation]:
    """Leave out pairs that are there the other way round."""
    once: dict[frozenset[str], SameComputation] = {}
    for pair in pairs:
        once.setdefault(frozenset((pair.one, pair.other)), pair)
    return list(once.values())


def _require_correct(tasks: Sequence[TaskSamples], reading: SampleSet, runs: Sequence[RunDatabase]) -> None:
    if not any(task.correct for task in tasks):
        what = "this run has" if len(runs) == 1 else f"these {len(runs)} runs have"
        why = "; ".join(f"{count} {reason}" for reason, count in reading.dropped.most_common(2))
        raise UsageError(
            f"{what} no correct kernel of its own to learn from" + (f" ({why})" if why else ""),
            "give a run with correct candidates; `kernelwright report RUN` shows what it has",
        )


def _of_run(run: RunDatabase) -> Row:
    found = run.run
    mark = found.target.fingerprint
    return {
        "id": found.id,
        "started": found.started,
        "command": found.command,
        "kernelwright": found.kernelwright,
        "chip": mark.chip,
        "threads": mark.threads,
        "torch": mark.torch,
        "compiler": mark.compiler,
    }
