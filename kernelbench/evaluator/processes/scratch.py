"""Folder of the scratch folders of a referee's workers; what a killed referee left is removed."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.evaluator.processes.worker_handle import remove

PREFIX = "kernelwright-scratch-"
_OLD_S = 60.0  # a younger folder's referee may not have locked it yet


class ScratchFolder:
    """Locked for as long as it is used: the lock goes with the process, however that ends."""

    def __init__(self) -> None:
        """Raise StorageError where no temporary folder can be written."""
        try:
            sweep(Path(tempfile.gettempdir()))
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
            self.path.chmod(0o711)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # FileNotFoundError where none of the usual folders can be written
            why = error.strerror or "no temporary folder can be written"
            raise StorageError(
                f"no scratch folder could be made: {why}", "set TMPDIR to a writable folder"
            ) from None

    def remove(self) -> None:
        remove(self.path)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Remove this user's scratch folders in `parent` whose judges are gone, in this container or another."""
    for folder in _unlocked(parent):
        remove(folder)


def _unlocked(parent: Path) -> Iterator[Path]:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, or another referee was faster
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(lock)
                if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _OLD_S:
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
            finally:
                os.close(lock)
