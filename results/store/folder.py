"""A run's folder: `run.db`, `summary.json`, `report.html`, `best/<task>.py`; held by one process.

In place of `run.db`, `run.url` may name a server's database, and the run in it.
"""

import fcntl
import os
import uuid
from pathlib import Path
from typing import Self

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.store.connection import ELSEWHERE, FILE, place_in_server
from kernelwright.results.store.database import NoRunError, RunDatabase


class FolderInUseError(StorageError):
    """Another process holds the folder."""


class RunFolder:
    """Paths and atomic writes. `create`, `hold` and `resume` take the lock; readers need none.

    The lock is an exclusive flock on DIR/.lock. It is released when the process that holds it ends (and any
    child it forked without exec), however that happens.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, database: str | None = None) -> Self:
        """Create a folder, or take an existing one that holds no run.

        `database`: the URL of a server's, in place of a file in it. Raises UsageError if it holds a run,
        StorageError if it cannot be written or is in use, or if the server does not answer.
        """
        place = place_in_server(database) if database is not None else None
        folder = cls.hold(path)
        if folder.holds_run:
            folder.close()
            raise UsageError(f"{path} already holds a run", f"use --resume {path} or another --out")
        elsewhere = path / ELSEWHERE
        elsewhere.unlink(missing_ok=True)
        if place is not None:
            elsewhere.touch(0o600)  # it may hold a password
            elsewhere.write_text(place + "\n")
        return folder

    @classmethod
    def hold(cls, path: Path) -> Self:
        """Lock a folder, new or not, whatever is in it.

        Raises StorageError if it cannot be written or is in use.
        """
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise folder._unwritable(error) from error
        folder.acquire()
        return folder

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Lock the folder of an interrupted run. Raises StorageError if it holds none or is in use."""
        folder = cls(path)
        if not folder.holds_run:
            raise StorageError(f"{path} holds no run", f"start one with --out {path}")
        folder.acquire()
        return folder

    @property
    def database(self) -> Path:
        return self.path / FILE

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def best(self, slug: str) -> Path:
        """Return the path of a task's best kernel, given `Task.slug`."""
        return self.path / "best" / f"{slug}.py"

    @property
    def holds_run(self) -> bool:
        """True if a run's database is complete; a run that was killed before that is none."""
        if self.summary.exists():
            return True
        if not self.database.is_file() or self.database.stat().st_size == 0:
            return False
        try:
            RunDatabase.open(self.database, read_only=True).close()
        except NoRunError:
            return False
        except StorageError:
            pass  # damaged, or of another version: somebody's run all the same
        return True

    def write(self, path: Path, text: str) -> None:
        """Replace `path`, inside this folder, atomically: a reader sees the old text or the new."""
        try:
            write_atomically(path, text)
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(self) -> None:
        """Take the lock. Raises FolderInUseError, or StorageError if the folder cannot be written."""
        try:
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            raise FolderInUseError(
                f"another run (process {holder}) is writing to {self.path}",
                "wait for it to end, or use another --out",
            ) from None
        except OSError as error:
            os.close(lock)
            raise self._unwritable(error) from error
        self._lock = lock

    def _unwritable(self, error: OSError) -> StorageError:
        what = error.strerror or str(error)
        return StorageError(
            f"{self.path} cannot be written ({what})", "free some space, or use another --out"
        )


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically: temporary file, fsync, rename, fsync of the folder.

    Raises OSError and leaves no temporary file. A path that is not a regular file (a pipe, /dev/null) is
    written to, not replaced.
    """
    content = text.encode("utf-8", "replace")
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
