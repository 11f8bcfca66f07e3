"""Recorded replies with their rewards: the data of offline learning.

From the ranked lists of a data set of `kernelwright train curate`, where a score is the lower bound of the
speedup and 0 for wrong kernels; or from runs of models, whose trajectories earn the rewards of a scheme,
discounted rewards of later turns included.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.encoding import record_text
from kernelwright.rl_training.curation import parquet
from kernelwright.rl_training.replies import trajectories
from kernelwright.rl_training.rewards.scheme import Scheme
from kernelwright.rl_training.tracking.environment import hashes

RANKED = Path("ranked") / "train.parquet"


@dataclass(frozen=True)
class Prompted:
    """All replies to one prompt."""

    task: str
    prompt: tuple[tuple[str, str], ...]  # role, content
    replies: tuple[str, ...]
    rewards: tuple[float, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.prompt]


@dataclass(frozen=True)
class Recorded:
    prompts: tuple[Prompted, ...]
    hashes: dict[str, str]  # sha256 by source

    @property
    def tasks(self) -> set[str]:
        return {one.task for one in self.prompts}


def recorded(sources: Sequence[str], scheme: Scheme) -> Recorded:
    """Read the replies of data sets and runs; those without a reward are left out.

    Raises UsageError if there are none, or of only one task; StorageError, MissingPrerequisite.
    """
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, float]]] = {}
    sums: dict[str, str] = {}
    for source in sources:
        ranked = Path(source) / RANKED
        if ranked.is_file():
            parquet.require()
            sums |= hashes([ranked])
            rows = _of_data_set(ranked)
        else:
            _require_run(source)
            with RunDatabase.open(source, read_only=True) as run:
                rows, sums[source] = _of_run(run, scheme)
        for task, prompt, reply, reward in rows:
            found.setdefault((task, prompt), []).append((reply, reward))
    prompts = tuple(
        Prompted(task, prompt, *zip(*replies, strict=True)) for (task, prompt), replies in found.items()
    )
    _require_tasks(prompts, sources)
    return Recorded(prompts, sums)


Row = tuple[str, tuple[tuple[str, str], ...], str, float]  # task, prompt, reply, reward


def _of_data_set(path: Path) -> list[Row]:
    rows: list[Row] = []
    for row in parquet.read(path):
        prompt = tuple((message["role"], message["content"]) for message in row["prompt"])
        scored = zip(row["completions"], row["scores"], strict=True)
        rows += [(row["task"], prompt, reply, score) for reply, score in scored]
    return rows


def _of_run(run: RunDatabase, scheme: Scheme) -> tuple[list[Row], str]:
    """Return the rows of a run and a hash of them: its database may change bytes but not content."""
    rows, seen = list[Row](), hashlib.sha256()
    for trajectory in trajectories(run, scheme):
        seen.update(record_text(trajectory).encode())
        returns = scheme.returns(trajectory.rewards)
        for turn, earned in zip(trajectory.turns, returns, strict=True):
            if earned is not None:
                prompt = tuple((str(message.role), message.content) for message in turn.messages)
                rows.append((trajectory.task, prompt, turn.reply, earned))
    return rows, seen.hexdigest()


def _require_run(source: str) -> None:
    folder = Path(source)
    if folder.is_dir() and not (folder / "run.db").exists():
        raise UsageError(
            f"{source} holds neither ranked lists ({RANKED}) nor a run",
            "give a folder that `kernelwright train curate` wrote, or a run's",
        )


def _require_tasks(prompts: Iterable[Prompted], sources: Sequence[str]) -> None:
    tasks = sorted({one.task for one in prompts})
    where = ", ".join(sources)
    if not tasks:
        raise UsageError(
            f"{where}: nothing to learn from",
            "give data with ranked lists, or runs whose kernels a model wrote and that were measured",
        )
    if len(tasks) == 1:
        raise UsageError(
            f"{where}: only one task, {tasks[0]}, which would be memorized",
            "give data of more tasks",
        )
