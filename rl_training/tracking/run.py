"""The folder of a training while it is written: held by one process, resumed only with equal settings."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.machine import fingerprint, physical_threads
from kernelwright.kernelbench.records import Record
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.store.lines import append
from kernelwright.results.store.training import (
    MANIFEST,
    STARTS,
    Manifest,
    Start,
    holds_training,
    read_manifest,
)
from kernelwright.rl_training.tracking.environment import commit, packages

_DIFFERENCES = 3  # named in an error at most


@dataclass(frozen=True)
class TrainingFolder:
    path: Path
    manifest: Manifest
    checkpoint: Path | None  # the last whole one, to go on from


@contextmanager
def tracked(
    path: Path,
    method: str,
    config: Record,
    seeds: Mapping[str, int],
    data: Mapping[str, str],
    command: str | None = None,
) -> Iterator[TrainingFolder]:
    """Begin a training in a new folder, or resume the one that is there.

    `data`: sha256 by name (environment.hashes). Settings of display (a tracker) do not belong in `config`.
    Raises UsageError if the folder holds something else, or a training with another method, config, seeds or
    data; StorageError if it cannot be written or is in use.
    """
    from kernelwright.rl_training.trainers.checkpoints import last_good, step_of

    now = _manifest(method, config, seeds, data, command)
    with RunFolder.hold(path) as folder:
        if holds_training(path):
            began = read_manifest(path)
            _require_same(path, began, now, _defaults(config))
        elif any(not found.name.startswith(".") for found in path.iterdir()):
            raise UsageError(f"{path} is not empty and holds no training", "use another --out")
        else:
            began = now
            folder.write(path / MANIFEST, began.model_dump_json(indent=2) + "\n")
        checkpoint = last_good(path)
        start = Start(
            started=now.started,
            step=(step_of(checkpoint) or 0) if checkpoint is not None else 0,
            command=now.command,
            kernelwright=now.kernelwright,
            commit=now.commit,
            machine=now.machine,
        )
        append(path / STARTS, record_text(start))
        yield TrainingFolder(path, began, checkpoint)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _manifest(
    method: str,
    config: Record,
    seeds: Mapping[str, int],
    data: Mapping[str, str],
    command: str | None,
) -> Manifest:
    return Manifest(
        method=method,
        config=config.model_dump(mode="json"),
        seeds=dict(seeds),
        data=dict(data),
        command=command or shlex.join(["kernelwright", *sys.argv[1:]]),
        started=now(),
        kernelwright=kernelwright_version(),
        commit=commit(),
        packages=packages(),
        machine=fingerprint(physical_threads()),
    )


def _defaults(config: Record) -> dict[str, JsonValue]:
    """Return what a setting was before it could be set."""
    fields = type(config).model_fields.items()
    return {name: field.default for name, field in fields if isinstance(field.default, int | float | str)}


def _require_same(path: Path, began: Manifest, now: Manifest, defaults: Mapping[str, JsonValue]) -> None:
    if began.method != now.method:
        raise UsageError(
            f"{path} is a training by {began.method}, not by {now.method}",
            "use the same method, or another --out",
        )
    for what, before, after in (
        ("settings", {**defaults, **began.config}, now.config),
        ("seeds", began.seeds, now.seeds),
    ):
        if differing := _differences(before, after):
            raise UsageError(
                f"{path} was begun with other {what}: {'; '.join(differing)}",
                "use the same to resume it, or another --out",
            )
    if began.data != now.data:
        names = sorted(began.data.keys() | now.data.keys())
        changed = [name for name in names if began.data.get(name) != now.data.get(name)]
        raise UsageError(
            f"{path} was begun with other data: {', '.join(map(repr, changed[:_DIFFERENCES]))} differ",
            "use the same data to resume it, or another --out",
        )


def _differences(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> list[str]:
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name} was {before.get(name)}, now is {after.get(name)}"
        for name in names
        if before.get(name) != after.get(name)
    ][:_DIFFERENCES]
