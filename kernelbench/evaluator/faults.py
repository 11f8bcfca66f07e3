"""Faults of the machine, which are nobody's verdict: a full disk, a read-only folder, too many open files."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernelwright.kernelbench.errors import InfrastructureError, StorageError

LEAST_FREE_BYTES = 64 << 20  # below it, compilers and candidates fail for want of space
_PROBE_BYTES = 1 << 20
_FIXES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EROFS: "make it writable, or set KERNELWRIGHT_HOME and TMPDIR to folders that are",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "free some memory",
}


@contextlib.contextmanager
def of_the_machine() -> Iterator[None]:
    """Raise what the referee itself runs into here as InfrastructureError, where a user can fix it."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0)
        if fix is None:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise InfrastructureError(f"the machine failed: {error.strerror}{where}", fix) from error


def check_folder(folder: Path, what: str, setting: str) -> None:
    """Raise StorageError where `folder`, which is `what`, cannot be written, or has no space left.

    `setting`: the environment variable that names another.
    """
    try:
        free = os.statvfs(folder)
        descriptor, name = tempfile.mkstemp(prefix=".kernelwright-", dir=folder)
        try:
            os.posix_fallocate(descriptor, 0, _PROBE_BYTES)
        finally:
            os.close(descriptor)
            Path(name).unlink()
    except OSError as error:
        why, left = error.strerror, None
    else:
        left = free.f_bavail * free.f_frsize
        if left >= LEAST_FREE_BYTES:
            return
        why = f"only {left >> 20} MiB are free"
    raise StorageError(
        f"{what} {folder} cannot be used: {why}", f"set {setting} to a writable folder with space"
    )


def space_left(folder: Path) -> bool:
    """Return True unless files are known not to fit in `folder`."""
    try:
        check_folder(folder, "", "")
    except StorageError:
        return False
    return True
