"""Results of acceptance: checks of a step, and its outcome, each a line of JSON that is written at once."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["passed", "failed", "not tried"]


@dataclass(frozen=True)
class Check:
    """One thing that holds or does not; `passed` is None for what could not be tried."""

    step: str
    name: str
    passed: bool | None
    what: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The end of a step."""

    step: str
    state: State
    seconds: float
    why: str = ""


class Journal:
    """A file of checks and outcomes; several processes add to it, one after the other."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)

    def add(self, record: Check | Outcome) -> None:
        kind = {"kind": type(record).__name__.lower()}
        with self.file.open("a") as file:
            file.write(json.dumps(kind | asdict(record), default=str) + "\n")

    def size(self) -> int:
        """Return the bytes that have been written so far."""
        return self.file.stat().st_size if self.file.exists() else 0

    def checks(self, begin: int = 0) -> list[Check]:
        """Return the checks that were written after so many bytes."""
        found = [line for line in self._lines(begin) if line.pop("kind") == "check"]
        return [Check(**line) for line in found]

    def _lines(self, begin: int = 0) -> Iterator[dict[str, Any]]:
        """Yield what was written; a last line that a killed process left unfinished is left out."""
        written = self.file.read_bytes()[begin:] if self.file.exists() else b""
        for line in written.splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def passed(self) -> set[str]:
        """Return the steps that passed when they were last tried."""
        tried = [line for line in self._lines() if line["kind"] == "outcome" and line["state"] != "not tried"]
        states = {line["step"]: line["state"] for line in tried}
        return {step for step, state in states.items() if state == "passed"}


def table(outcomes: Sequence[Outcome], checks: Sequence[Sequence[Check]]) -> list[str]:
    """Lines of a Markdown table of steps, each with its checks."""
    lines = [
        "| step | result | seconds | checks passed | first that failed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for outcome, of_step in zip(outcomes, checks, strict=True):
        tried = [check for check in of_step if check.passed is not None]
        bad = [f"{check.name}: {check.what}" for check in tried if not check.passed]
        first = (bad[0] if bad else outcome.why).replace("|", "/").replace("\n", " ")[:200]
        count = f"{sum(bool(check.passed) for check in tried)} of {len(tried)}" if tried else ""
        lines.append(f"| {outcome.step} | {outcome.state} | {outcome.seconds:.0f} | {count} | {first} |")
    return lines
