"""The tasks to train on, from a data set of `train curate` or from runs."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training.curation import parquet
from kernelwright.rl_training.curation.rows import task_row
from kernelwright.rl_training.curation.samples import TaskSamples, read
from kernelwright.rl_training.curation.split import held_out
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.similarity import ALIKE


@dataclass(frozen=True)
class Tasks:
    train: tuple[TaskData, ...]
    test: tuple[TaskData, ...]

    @property
    def device(self) -> str:
        """Device of all tasks. Raises UsageError if there are several."""
        devices = {data.target.device for data in (*self.train, *self.test)}
        if len(devices) != 1:
            raise UsageError(f"the tasks are for {' and '.join(sorted(devices))}", "give tasks of one device")
        return devices.pop()


def tasks_from(sources: Sequence[str], share: float, seed: int) -> Tasks:
    """Return the tasks of a data set as it is split, or of runs with `share` held out by whole families.

    Raises UsageError, StorageError.
    """
    if len(sources) == 1 and (Path(sources[0]) / "tasks").is_dir():
        found = _of_data_set(Path(sources[0]))
    else:
        found = _of_runs(sources, share, seed)
    if not found.train:
        raise UsageError(
            f"{', '.join(sources)}: no tasks to train on", "give a data set of `train curate`, or other runs"
        )
    return found


def tasks_of_device(sources: Sequence[str], seed: int, target: str) -> Tasks:
    """Return the tasks, none of runs held out, which are for the device that evaluates. Raises UsageError."""
    found = tasks_from(sources, 0.0, seed)
    if found.device.partition(":")[0] != target.partition(":")[0]:
        raise UsageError(
            f"--target {target}: the tasks are for {found.device}, and prompts describe that",
            f"use --target {found.device}, or runs on {target}",
        )
    return found


def _of_data_set(folder: Path) -> Tasks:
    parts = {}
    for split in ("train", "test"):
        path = folder / "tasks" / f"{split}.parquet"
        try:
            rows = parquet.read(path) if path.exists() else []
            parts[split] = tuple(TaskData.model_validate_json(row["data"]) for row in rows)
        except (ValidationError, KeyError) as error:
            raise StorageError(
                f"{path} holds no tasks of this version: {error}",
                "make the data set again with `train curate`",
            ) from None
    return Tasks(**parts)


def _of_runs(runs: Sequence[str], share: float, seed: int) -> Tasks:
    with ExitStack() as stack:
        found = read(stack.enter_context(RunDatabase.open(run, read_only=True)) for run in runs).tasks
    test = held_out(found, share, seed, ALIKE) if found else []

    def of(part: Sequence[TaskSamples]) -> tuple[TaskData, ...]:
        return tuple(TaskData.model_validate_json(task_row(task)["data"]) for task in part)

    return Tasks(train=of([task for task in found if task not in test]), test=of(test))
