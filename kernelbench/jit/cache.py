"""Finished builds by content key: built once however many processes ask, and always complete.

A build happens in a private folder beside its entry and becomes the entry by one rename, once it is on the
disk, so that a killed build or a power cut leaves temporary files but never a broken entry; the next builder
of that key removes them. An entry whose files do not have the sizes that were built is rebuilt.

The lock is an flock: it is released with the process that held it, so a leftover lock file means nothing.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.programs import Awake

LAYOUT = "3"  # part of every key: raise it when what an entry holds changes
_SIZES = "sizes.json"  # of an entry: what its other files were in bytes when it was built


def default_folder() -> Path:
    """Return KERNELWRIGHT_CACHE, or ~/.cache/kernelwright/build."""
    named = os.environ.get("KERNELWRIGHT_CACHE")
    return Path(named).absolute() if named else Path.home() / ".cache" / "kernelwright" / "build"


def content_key(*parts: str) -> str:
    """Return a hash of the parts, each with its length, so that no two lists of parts collide."""
    digest = hashlib.sha256()
    for part in (LAYOUT, *parts):
        data = part.encode(errors="surrogateescape")
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()[:40]


class BuildCache:
    """A folder of entries; an entry is a folder that is never changed once it is there."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def entry(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def get_or_build(self, key: str, build: Callable[[Path], None], wait_s: float) -> Path:
        """Return the entry of `key`, made by `build(workspace)` if missing; an exception leaves no entry.

        Waits at most `wait_s` for another process that builds the same key. Raises BuildError when that is
        over, or when there is no entry and the folder cannot be written.
        """
        entry = self.entry(key)
        if self.whole(entry):
            return entry
        lock = entry.with_name(f"{key}.lock")
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if self.whole(entry):
                return entry
            raise BuildError(
                f"the build cache {self.folder} has no such build and cannot be written "
                f"({error.strerror}); set KERNELWRIGHT_CACHE to a writable folder"
            ) from error
        with _held(descriptor, lock, wait_s):
            if not self.whole(entry):
                self._build(entry, build)
            # Whoever still waits on the lock finds the entry; only a failed build must keep its lock
            # file, for a waiter builds next and must not meet a second builder.
            with suppress(OSError):
                lock.unlink()
        return entry

    @staticmethod
    def whole(entry: Path) -> bool:
        """Return True if the entry exists and is complete."""
        try:
            sizes = json.loads((entry / _SIZES).read_text())
            return all((entry / name).stat().st_size == size for name, size in sizes.items())
        except (OSError, ValueError, AttributeError):
            return False

    def discard(self, entry: Path) -> None:
        """Remove an unusable entry, if the folder can be written, so that it is rebuilt."""
        away = entry.with_name(f"{entry.name}.tmp-{os.getpid()}")
        with suppress(OSError):  # another process may have been faster
            entry.rename(away)
        shutil.rmtree(away, ignore_errors=True)

    def _build(self, entry: Path, build: Callable[[Path], None]) -> None:
        for rubbish in entry.parent.glob(f"{entry.name}.tmp-*"):  # we hold the lock: its maker is dead
            shutil.rmtree(rubbish, ignore_errors=True)
        try:
            workspace = Path(tempfile.mkdtemp(prefix=f"{entry.name}.tmp-", dir=entry.parent))
        except OSError as error:
            raise BuildError(f"the build cache {self.folder} cannot be written ({error.strerror})") from error
        try:
            build(workspace)
            files = [path for path in workspace.rglob("*") if path.is_file()]
            sizes = {str(path.relative_to(workspace)): path.stat().st_size for path in files}
            (workspace / _SIZES).write_text(json.dumps(sizes))
            for path in (*(workspace / name for name in (*sizes, _SIZES)), workspace):
                _to_disk(path)
            workspace.chmod(0o755)
            if entry.is_dir():
                self.discard(entry)
            workspace.rename(entry)
            _to_disk(entry.parent)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)

    def trim(self, keep: int) -> None:
        """Remove all but the `keep` entries used last (see `touch`). For folders of few, large entries."""
        entries = sorted(self.folder.glob("??/" + "?" * 40), key=_modified, reverse=True)
        for entry in entries[keep:]:
            shutil.rmtree(entry, ignore_errors=True)

    @staticmethod
    def touch(entry: Path) -> None:
        """Mark an entry as used now."""
        with suppress(OSError):
            os.utime(entry)


def _to_disk(path: Path) -> None:
    """Flush a file or folder, so that its content survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _held(descriptor: int, lock: Path, wait_s: float) -> Iterator[None]:
    try:
        waited = Awake()
        pause_s = 0.005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited.seconds() > wait_s:
                    raise BuildError(f"another process holds {lock} for more than {wait_s:.0f} s") from None
                time.sleep(pause_s)
                pause_s = min(0.1, pause_s * 1.5)
        yield
    finally:
        os.close(descriptor)
