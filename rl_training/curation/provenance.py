"""Provenance of a data set: where its tasks are from, under which licenses, and how many rows it has."""

from collections import Counter
from collections.abc import Mapping, Sequence

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.curation.samples import TaskSamples

# By the prefix of a task's name. Others are files of the user's, or of a project with a license of its own.
_LICENSES = {"builtin": "Apache-2.0", "kernelbench": "MIT"}
_SIZES = (
    (1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)  # fmt: skip


class TaskSource(Record):
    """Source of tasks. `license`: None if it is not known."""

    name: str
    tasks: int
    license: str | None


class Provenance(Record):
    """Fields of the card. `license` and `size_category` as the Hugging Face Hub names them."""

    license: str
    size_category: str
    sources: tuple[TaskSource, ...]


def provenance(tasks: Sequence[TaskSamples], rows: Mapping[str, Mapping[str, int]]) -> Provenance:
    """Return the provenance of tasks. `rows`: how many by configuration and split."""
    counts = Counter(_source(task.data.task.id) for task in tasks)
    sources = tuple(
        TaskSource(name=name, tasks=count, license=_LICENSES.get(name))
        for name, count in sorted(counts.items())
    )
    known = {source.license for source in sources}
    (only,) = known if len(known) == 1 else (None,)
    most = sum(sum(splits.values()) for splits in rows.values())
    category = next((name for limit, name in _SIZES if most < limit), "n>10M")
    return Provenance(license=only.lower() if only else "other", size_category=category, sources=sources)


def _source(task: str) -> str:
    prefix, colon, _ = task.partition(":")
    return prefix if colon and prefix.isidentifier() else "files"
