"""Tasks and settings of this package: the files that `kernelwright train environment` wrote beside it.

KERNELWRIGHT_SERVER      address of the server, in place of the one in settings.json
KERNELWRIGHT_TOKEN       its token, which is never written into the package
KERNELWRIGHT_TOKEN_FILE  a file with it
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .client import RewardClient

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PackageSettings:
    """PackageSettings of rewards. `turns`: replies to a task at most, where the trainer takes several."""

    server: str
    scheme: Any
    turns: int = 1
    effort: str | None = None


@dataclass(frozen=True)
class PackagedTask:
    """A task: its prompt, what the server needs of it, and what is known of it."""

    prompt: list[dict[str, str]]
    answer: str
    info: dict[str, Any]


@cache
def settings() -> PackageSettings:
    """Return the settings of this package."""
    return PackageSettings(**json.loads((FOLDER / "settings.json").read_text(encoding="utf-8")))


@cache
def connect() -> RewardClient:
    """Return the client of the server that the settings or the environment name."""
    found = settings()
    token, file = os.environ.get("KERNELWRIGHT_TOKEN"), os.environ.get("KERNELWRIGHT_TOKEN_FILE")
    if token is None and file is not None:
        token = Path(file).read_text(encoding="utf-8").split()[0]
    return RewardClient(
        os.environ.get("KERNELWRIGHT_SERVER", found.server), token, found.scheme, found.effort
    )


def rows(split: str = "train") -> Iterator[PackagedTask]:
    """Yield the tasks of a split, `train` or `test`; none where there is no such file."""
    path = FOLDER / "tasks" / f"{split}.jsonl"
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                found = json.loads(line)
                yield PackagedTask(found["prompt"], found["answer"], found["info"])
