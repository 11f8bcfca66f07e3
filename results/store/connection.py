"""Connections to the run database: engines for SQLite and PostgreSQL, and their errors in one line.

SQLite runs in write-ahead mode with `synchronous=FULL`: a commit that returned is on the disk, and a process
killed in the middle of one leaves nothing of it (https://sqlite.org/wal.html, "Durability").
"""

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError, UsageError

LOCK_TIMEOUT_S = 30.0
FILE, ELSEWHERE = "run.db", "run.url"  # of a run's folder; the latter names a server's database
_RUN = "kernelwright_run"  # parameter of a URL: one of the runs of a database
SAFE = "the evaluations already recorded are safe"


def location(where: Path | str) -> URL:
    """Return the URL of a run database: a run folder, an SQLite file or a database URL.

    Raises UsageError for an invalid URL.
    """
    if isinstance(where, str) and "://" in where:
        try:
            return make_url(where)
        except ArgumentError:
            raise UsageError("invalid database URL", "use postgresql+psycopg://user@host/name") from None
    path = Path(where)
    file = path / FILE if path.is_dir() else path
    elsewhere = file.with_name(ELSEWHERE)
    if file.name == FILE and not file.exists() and elsewhere.is_file():
        return location(elsewhere.read_text().strip())
    return URL.create("sqlite", database=str(file))


def run_of(url: URL) -> tuple[URL, str | None]:
    """Return the URL of a database, and the run that it names."""
    named = url.query.get(_RUN)
    return url.difference_update_query([_RUN]), named if isinstance(named, str) else None


def place_in_server(database: str) -> str:
    """Return a database's URL with the name of a new run in it, once it answers.

    Raises UsageError, MissingPrerequisite, StorageError.
    """
    url = location(database) if "://" in database else None
    if url is None or url.get_backend_name() == "sqlite":
        raise UsageError(
            "--database is for a server", "use postgresql+psycopg://user@host/name, or --out for a file"
        )
    engine = engine_for(url, read_only=False)
    with storage_errors(url):
        engine.connect().close()
    engine.dispose()
    return url.update_query_dict({_RUN: uuid.uuid4().hex}).render_as_string(hide_password=False)


def shown(url: URL) -> str:
    """Return the URL for messages: an SQLite file by its path, a server without its password."""
    return str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string()


def engine_for(url: URL, read_only: bool) -> Engine:
    """Create an engine whose transactions take the write lock at once where `writing(engine)` made it."""
    try:
        if url.get_backend_name() != "sqlite":
            return create_engine(url, pool_pre_ping=True, max_overflow=-1)
        engine = create_engine(
            _read_only(url) if read_only else url,
            connect_args={"timeout": LOCK_TIMEOUT_S},
            max_overflow=-1,  # as many as there are threads
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise MissingPrerequisite(
            f"no driver for {url.drivername} ({_one_line(error)})", "pip install 'kernelwright[cluster]'"
        ) from None

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # `begin` below says when and how a transaction starts
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("kernelwright_write", False)
        # A reader that turned writer half-way could find the database changed under it and fail at once.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def writing(engine: Engine) -> Engine:
    """Return the same engine, same pool, for transactions that write."""
    return engine.execution_options(kernelwright_write=True)


@contextmanager
def storage_errors(url: URL) -> Iterator[None]:
    """Turn database failures (full, locked, read-only, damaged, gone) into a StorageError."""
    try:
        yield
    except DBAPIError as error:
        raise _storage_error(url, error.orig or error) from error
    except UnicodeDecodeError as error:  # what SQLite says of a damaged file may quote from it
        raise damaged(url) from error


def _storage_error(url: URL, error: BaseException) -> StorageError:
    name = shown(url)
    # The low byte is the primary code; the rest says which system call it was.
    match (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StorageError(f"no space left for {name}; {SAFE}", "free some space and use --resume")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StorageError(
                f"{name} cannot be written; {SAFE}", "make the file and its folder writable and use --resume"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageError(
                f"{name} has been locked by another process for {LOCK_TIMEOUT_S:.0f} s; {SAFE}",
                "end the other process and use --resume",
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StorageError(
                f"{name} cannot be opened", "check that its folder exists and can be written, or copy it"
            )
        case sqlite3.SQLITE_IOERR:
            return StorageError(
                f"the disk failed under {name} ({_one_line(error)}); {SAFE}",
                "check the disk and its free space, then use --resume",
            )
        case sqlite3.SQLITE_CORRUPT:
            return damaged(url)
        case sqlite3.SQLITE_NOTADB:
            return StorageError(f"{name} is not a database", "give a folder that `kernelwright run` wrote")
    if url.get_backend_name() == "sqlite":  # a file: there is no connection that could fail
        if "no such" in str(error):
            return StorageError(
                f"{name} lacks columns of this version ({_one_line(error)}): another program changed it, "
                "or it is damaged",
                f"read it with the version that wrote it, or {_recovery(url)}",
            )
        return damaged(url)
    return StorageError(
        f"the database {name} failed ({_one_line(error)}); {SAFE}", "fix the connection and use --resume"
    )


def require_present(url: URL) -> None:
    """Raise StorageError if the file of a database was removed or renamed, which a connection survives."""
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise StorageError(
            f"{shown(url)} is gone, with what was recorded in it", "put its folder back, or start another run"
        )


def damaged(url: URL) -> StorageError:
    """Return the error for a file with wrong bytes, whose content is not safe."""
    return StorageError(
        f"{shown(url)} is damaged; the evaluations recorded outside the damage can be recovered",
        _recovery(url),
    )


def _recovery(url: URL) -> str:
    """Describe the recovery. `.recover` would find more, but some distributions' sqlite3 lacks it."""
    whole = r"sed 's/^ROLLBACK.*/COMMIT;/'"  # `.dump` ends with it where it could not read all
    return f"run `sqlite3 {shown(url)} .dump | {whole} | sqlite3 recovered.db` and read recovered.db"


def _read_only(url: URL) -> URL:
    """Return a read-only SQLite URL; a closed database on a read-only disk is opened as immutable.

    Readers in write-ahead mode share an index file that they must be able to create.
    """
    path = Path(str(url.database))
    query = {"uri": "true", "mode": "ro"}
    journal = path.with_name(path.name + "-wal")
    if not os.access(path.parent, os.W_OK) and not journal.exists():
        query["immutable"] = "1"
    return URL.create("sqlite", database=f"file:{quote(str(path.absolute()))}", query=query)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
