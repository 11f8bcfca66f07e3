"""The memory of hacks: candidates found to cheat, to take an implausible time, or to change their results.

A small SQLite file that belongs to a training run. The cases nearest to a file are found by the similarity
that finds near-duplicates; a policy caught again with such a file is penalised, and shown the case (CUDA-L1's
checker, arXiv:2507.14111, has similar cases in its prompt). A file similar to a case, but not caught, is not
a hack: a race that was fixed looks much like the race.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training.outcome import HACKS, Outcome
from kernelwright.rl_training.similarity import ALIKE, Shingles, nearest, shingles

_TABLE = """
CREATE TABLE IF NOT EXISTS cases (
    candidate TEXT PRIMARY KEY, task TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
    source TEXT NOT NULL, first_seen TEXT NOT NULL, repeats INTEGER NOT NULL DEFAULT 0
)"""
_COLUMNS = "candidate, task, verdict, reason, source, repeats"


@dataclass(frozen=True)
class Case:
    candidate: str  # sha256
    task: str
    verdict: Verdict
    reason: str
    source: str
    repeats: int = 0  # how often something like it was caught afterwards


class HackMemory:
    """Thread-safe memory of hacks. All methods raise StorageError if the file fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, check_same_thread=False)
            with self._connection:
                self._connection.execute(_TABLE)
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM cases ORDER BY rowid").fetchall()
        self._cases: dict[str, Case] = {row[0]: _case(row) for row in rows}
        self._shingles: dict[str, Shingles] = {sha: shingles(c.source) for sha, c in self._cases.items()}

    def caught(self, task: str, candidate: str, source: str, outcome: Outcome) -> Case | None:
        """Remember a candidate if it is a hack; return the earlier known case it repeats, if any."""
        if outcome.verdict not in HACKS:
            return None
        assert outcome.verdict is not None
        with self._lock:
            known = self._nearest(source, 1, ALIKE)
            repeated = known[0][0] if known else None
            if candidate not in self._cases:
                self._add(Case(candidate, task, outcome.verdict, outcome.reason, source))
            if repeated is not None:
                self._count(repeated.candidate)
            return repeated

    def nearest(self, source: str, most: int = 2, at_least: float = ALIKE) -> list[tuple[Case, float]]:
        """Return the cases most similar to a source, with their similarity from 0 to 1."""
        with self._lock:
            return self._nearest(source, most, at_least)

    def warnings(self, task: str, most: int = 2) -> list[Case]:
        """Return the cases repeated most often on this task, to show to a policy that works on it."""
        with self._lock:
            repeated = [case for case in self._cases.values() if case.task == task and case.repeats]
        return sorted(repeated, key=lambda case: -case.repeats)[:most]

    def learn(self, run: RunDatabase) -> int:
        """Add the hacks caught in a run, which are not repetitions; return the number of new cases."""
        before = len(self)
        for entry in run.tasks():
            for attempt in run.attempts(entry.task.id):
                made, found = attempt.candidate, attempt.evaluation
                with self._lock:
                    if found.verdict in HACKS and made.sha256 not in self._cases:
                        self._add(Case(made.sha256, entry.task.id, found.verdict, found.reason, made.source))
        return len(self) - before

    def __len__(self) -> int:
        return len(self._cases)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _nearest(self, source: str, most: int, at_least: float) -> list[tuple[Case, float]]:
        found = nearest(shingles(source), self._shingles.items(), at_least)
        return [(self._cases[sha], share) for sha, share in found[:most]]

    def _add(self, case: Case) -> None:
        row = (case.candidate, case.task, case.verdict.value, case.reason, case.source)
        with self._errors(), self._connection:
            self._connection.execute(
                "INSERT INTO cases (candidate, task, verdict, reason, source, first_seen)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (*row, datetime.now(UTC).isoformat()),
            )
        self._cases[case.candidate] = case
        self._shingles[case.candidate] = shingles(case.source)

    def _count(self, candidate: str) -> None:
        with self._errors(), self._connection:
            self._connection.execute(
                "UPDATE cases SET repeats = repeats + 1 WHERE candidate = ?", (candidate,)
            )
        case = self._cases[candidate]
        row = (case.candidate, case.task, case.verdict, case.reason, case.source, case.repeats + 1)
        self._cases[candidate] = _case(row)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"{self._path} cannot be used as a memory of hacks: {error}",
                "free some space, or use another file",
            ) from error


def _case(row: tuple[str, str, str, str, str, int]) -> Case:
    candidate, task, verdict, reason, source, repeats = row
    return Case(candidate, task, Verdict(verdict), reason, source, repeats)
