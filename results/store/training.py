"""The folder of a training: its manifest, each start, and its metrics step by step.

    manifest.json   written once, never changed
    starts.jsonl    a line for each start, the first and those resumed from a checkpoint
    metrics.jsonl   a line for each step that was logged

Trainers write it (rl_training/tracking), reports read it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import Field, JsonValue, ValidationError

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Fingerprint, Record

SCHEMA = 1
MANIFEST, STARTS, METRICS = "manifest.json", "starts.jsonl", "metrics.jsonl"

AnyRecord = TypeVar("AnyRecord", bound=Record)


class Manifest(Record):
    schema_version: int = Field(default=SCHEMA, alias="schema")
    method: str  # "sft", "grpo", "rrhf"
    config: dict[str, JsonValue]  # the method's settings, all of them
    seeds: dict[str, int]
    data: dict[str, str]  # sha256 by file
    command: str
    started: str  # ISO 8601, UTC
    kernelwright: str
    commit: str | None  # of the checkout it ran from; None where it was none
    packages: dict[str, str]  # versions
    machine: Fingerprint

    model_config = Record.model_config | {"populate_by_name": True, "serialize_by_alias": True}


class Start(Record):
    started: str  # ISO 8601, UTC
    step: int  # that it went on from
    command: str
    kernelwright: str
    commit: str | None
    machine: Fingerprint


class Point(Record):
    """Values logged at a step."""

    step: int
    time: str  # ISO 8601, UTC
    values: dict[str, float]


@dataclass(frozen=True)
class Training:
    """A training as a report shows it, read once; it may still be running."""

    folder: Path
    manifest: Manifest
    starts: tuple[Start, ...]
    points: tuple[Point, ...]  # each step once

    @classmethod
    def read(cls, folder: Path) -> "Training":
        """Read a training's folder. Raises StorageError."""
        return cls(
            folder,
            read_manifest(folder),
            tuple(_lines(folder / STARTS, Start)),
            tuple(counted_once(_lines(folder / METRICS, Point))),
        )

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of each step that logged this name."""
        return [(point.step, point.values[name]) for point in self.points if name in point.values]

    @property
    def names(self) -> list[str]:
        """Names of all logged values, in order of first appearance."""
        return list(dict.fromkeys(name for point in self.points for name in point.values))


def holds_training(where: str | Path) -> bool:
    return (Path(where) / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a training. Raises StorageError."""
    path = folder / MANIFEST
    fix = "read it with the version that wrote it"
    try:
        found = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}", "use the folder of a training"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise StorageError(f"invalid training manifest {path}: {where}: {first['msg']}", fix) from error
    if found.schema_version != SCHEMA:
        raise StorageError(f"{path} has schema {found.schema_version}, this version reads {SCHEMA}", fix)
    return found


def counted_once(points: Iterable[Point]) -> list[Point]:
    """Return one point per step; after a resume from an earlier step the last pass counts.

    Several lines logged for one step are one point.
    """
    kept: list[Point] = []
    for point in points:
        while kept and kept[-1].step > point.step:
            kept.pop()
        if kept and kept[-1].step == point.step:
            point = point.model_copy(update={"values": kept.pop().values | point.values})
        kept.append(point)
    return kept


def _lines(path: Path, record: type[AnyRecord]) -> Iterable[AnyRecord]:
    """Yield the records of a file, skipping a line cut off when a process was killed."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", "use the folder of a training") from error
    for line in lines:
        try:
            yield record.model_validate_json(line)
        except ValidationError:
            continue
