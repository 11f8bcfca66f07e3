"""Ledger of a server: its requests with their states and results, in an SQLite file.

One transaction for each change. What was committed survives a kill -9 of the process; `synchronous=NORMAL`
may lose the last changes when the machine loses power, which a client notices and sends again by its key.
"""

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.remote.wire import EvaluationResult, State

_SCHEMA = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS evaluations (
    id TEXT PRIMARY KEY, client TEXT NOT NULL, key TEXT, digest TEXT NOT NULL, place INTEGER NOT NULL,
    request TEXT NOT NULL, state TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, result TEXT,
    created REAL NOT NULL, ended REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_a_key ON evaluations (client, key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_digest ON evaluations (digest) WHERE state = 'done';
CREATE INDEX IF NOT EXISTS by_state ON evaluations (state);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, client TEXT NOT NULL, evaluations TEXT NOT NULL, created REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rollouts (
    id TEXT PRIMARY KEY, client TEXT NOT NULL, request TEXT NOT NULL, replies TEXT NOT NULL,
    created REAL NOT NULL
);
"""
_COLUMNS = "id, client, key, digest, request, state, tries, result, created"
_KEPT_S = 30 * 24 * 3600.0  # that ended requests are kept


@dataclass(frozen=True)
class LedgerEntry:
    """A request, as it stands in the ledger. `request` and `result` are JSON."""

    id: str
    client: str
    key: str | None
    digest: str  # of everything that its result depends on
    request: str
    state: State
    tries: int
    result: str | None
    created: float  # seconds since the epoch


@dataclass(frozen=True)
class NewEntry:
    """A request to be added. With a `result` it has ended."""

    key: str | None
    digest: str
    request: str
    result: EvaluationResult | None = None


class Ledger:
    """Thread-safe. Methods raise StorageError if the file fails."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or begin one. Raises StorageError, UsageError while another server has it."""
        self.path = path
        self._lock = threading.Lock()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=1.0
            )
            try:
                self._begin()
            except BaseException:
                self._connection.close()
                raise

    def _begin(self) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode=EXCLUSIVE")  # two servers would do each request twice
        try:
            run("PRAGMA journal_mode=WAL")
            run("PRAGMA synchronous=NORMAL")
            run("BEGIN IMMEDIATE")
            (version,) = run("PRAGMA user_version").fetchone()
            if version not in (0, _SCHEMA):
                raise StorageError(
                    f"{self.path} is of another version of kernelwright", "give another --database"
                )
            for statement in _TABLES.split(";"):
                run(statement)
            run(f"PRAGMA user_version={_SCHEMA}")
            run("DELETE FROM evaluations WHERE ended IS NOT NULL AND ended < ?", (time.time() - _KEPT_S,))
            for table in ("batches", "rollouts"):
                run(f"DELETE FROM {table} WHERE created < ?", (time.time() - _KEPT_S,))
            run("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(
                    f"another server works with {self.path}", "give another --database"
                ) from None
            raise

    def add(self, entries: Sequence[NewEntry], client: str, batch: str | None = None) -> list[LedgerEntry]:
        """Add requests, all or none; one whose key is known is the one that there is."""
        now, found = time.time(), []
        with self._writing():
            for place, new in enumerate(entries):
                known = self._by_key(client, new.key)
                if known is None:
                    known = LedgerEntry(
                        id=uuid.uuid4().hex,
                        client=client,
                        key=new.key,
                        digest=new.digest,
                        request=new.request,
                        state="queued" if new.result is None else "done",
                        tries=0,
                        result=None,
                        created=now,
                    )
                    result, ended = None, None
                    if new.result is not None:
                        result = new.result.model_copy(update={"id": known.id}).model_dump_json()
                        ended = now
                    self._connection.execute(
                        f"INSERT INTO evaluations ({_COLUMNS}, place, ended) VALUES ({'?, ' * 10}?)",
                        (
                            known.id, client, new.key, new.digest, new.request, known.state, 0, result,
                            now, place, ended,
                        ),
                    )  # fmt: skip
                    known = self._one(known.id)
                    assert known is not None
                found.append(known)
            if batch is not None:
                ids = json.dumps([entry.id for entry in found])
                self._connection.execute("INSERT INTO batches VALUES (?, ?, ?, ?)", (batch, client, ids, now))
        return found

    def count_tries(self, ids: Sequence[str], more: int) -> None:
        """Note how often requests were begun."""
        with self._writing():
            for id in ids:
                self._connection.execute("UPDATE evaluations SET tries = tries + ? WHERE id = ?", (more, id))

    def end(self, results: Sequence[EvaluationResult]) -> list[str]:
        """Note the results of requests, and return the ids of those that had not ended before."""
        ended = []
        with self._writing():
            for result in results:
                changed = self._connection.execute(
                    "UPDATE evaluations SET state = ?, result = ?, ended = ?"
                    " WHERE id = ? AND state = 'queued'",
                    (result.state, result.model_dump_json(), time.time(), result.id),
                )
                if changed.rowcount:
                    ended.append(result.id)
        return ended

    def entry(self, id: str, client: str) -> LedgerEntry | None:
        """Return a client's request."""
        with self._lock, self._errors():
            found = self._one(id)
        return found if found is not None and found.client == client else None

    def of_key(self, client: str, key: str | None) -> LedgerEntry | None:
        """Return the request that a client has given this key."""
        with self._lock, self._errors():
            return self._by_key(client, key)

    def done(self, digest: str) -> EvaluationResult | None:
        """Return the result of an equal request that has ended with one."""
        with self._lock, self._errors():
            row = self._connection.execute(
                "SELECT result FROM evaluations WHERE digest = ? AND state = 'done' ORDER BY ended LIMIT 1",
                (digest,),
            ).fetchone()
        return EvaluationResult.model_validate_json(row[0]) if row is not None else None

    def open(self) -> list[LedgerEntry]:
        """Return the requests that have not ended, the oldest first."""
        return self._several("state = 'queued' ORDER BY created, place", ())

    def batch(self, id: str, client: str) -> list[LedgerEntry]:
        """Return the requests of a client's batch, in their order; none if there is no such batch."""
        with self._lock, self._errors():
            row = self._connection.execute(
                "SELECT evaluations FROM batches WHERE id = ? AND client = ?", (id, client)
            ).fetchone()
            found = [self._one(each) for each in json.loads(row[0])] if row is not None else []
        return [entry for entry in found if entry is not None]

    def counts(self) -> dict[str, int]:
        """Return the number of requests in each state."""
        with self._lock, self._errors():
            rows = self._connection.execute(
                "SELECT state, COUNT(*) FROM evaluations GROUP BY state"
            ).fetchall()
        return dict(rows)

    def add_rollout(self, client: str, request: str) -> str:
        """Add a rollout and return its id."""
        id = uuid.uuid4().hex
        with self._writing():
            self._connection.execute(
                "INSERT INTO rollouts VALUES (?, ?, ?, '[]', ?)", (id, client, request, time.time())
            )
        return id

    def add_reply(self, id: str, replies: Sequence[str]) -> None:
        """Note all replies of a rollout so far."""
        with self._writing():
            self._connection.execute(
                "UPDATE rollouts SET replies = ? WHERE id = ?", (json.dumps(replies), id)
            )

    def rollout(self, id: str, client: str) -> tuple[str, list[str]] | None:
        """Return the request and the replies of a client's rollout."""
        with self._lock, self._errors():
            row = self._connection.execute(
                "SELECT request, replies FROM rollouts WHERE id = ? AND client = ?", (id, client)
            ).fetchone()
        return (row[0], json.loads(row[1])) if row is not None else None

    def close(self) -> None:
        self._connection.close()

    def _several(self, which: str, values: tuple[str, ...]) -> list[LedgerEntry]:
        with self._lock, self._errors():
            rows = self._connection.execute(
                f"SELECT {_COLUMNS} FROM evaluations WHERE {which}", values
            ).fetchall()
        return [LedgerEntry(*row) for row in rows]

    def _one(self, id: str) -> LedgerEntry | None:
        row = self._connection.execute(f"SELECT {_COLUMNS} FROM evaluations WHERE id = ?", (id,)).fetchone()
        return LedgerEntry(*row) if row is not None else None

    def _by_key(self, client: str, key: str | None) -> LedgerEntry | None:
        if key is None:
            return None
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM evaluations WHERE client = ? AND key = ?", (client, key)
        ).fetchone()
        return LedgerEntry(*row) if row is not None else None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"{self.path} cannot be used: {error}", "free some space, or give another --database"
            ) from error
