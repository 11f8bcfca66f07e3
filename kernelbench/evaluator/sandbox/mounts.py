"""A worker's own view of the file system: read-only but for its folders, its own /proc and /dev/shm.

To be called in the first process of new mount and PID namespaces. Needs Linux 5.12 (`mount_setattr`).
https://man7.org/linux/man-pages/man2/mount_setattr.2.html
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

CLONE_NEWNS = 0x00020000
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 1 << 1, 1 << 2, 1 << 3, 1 << 12, 1 << 14, 1 << 18
_MOUNT_SETATTR = 442  # the same on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY = 1
_SHARED_MEMORY = Path("/dev/shm")  # POSIX semaphores, such as multiprocessing.Lock, are files there
_SHARED_OPTIONS = "size=64m,nr_inodes=4096,mode=1777"


def enclose(writable: Iterable[Path], hidden: Iterable[Path] = (), writable_processes: bool = False) -> None:
    """Make all mounts read-only but those of the folders `writable`, and `hidden` folders empty.

    With `writable_processes`, processes may write to /proc/PID, as CUDA does when it names its threads; the
    rest of /proc, kernel settings among it, stays read-only. Raises OSError.
    """
    own = [os.fspath(path) for path in writable]
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    for path in own:
        _mount(path, path, None, _BIND)
    for folder in hidden:
        if folder.is_dir():
            _mount("tmpfs", os.fspath(folder), "tmpfs", _NOSUID | _NODEV | _NOEXEC)
    mount_proc()
    if writable_processes:
        for path in _beside_processes():
            _mount(path, path, None, _BIND)  # a mount of its own, which stays read-only
        own.append("/proc")
    if _SHARED_MEMORY.is_dir():
        own.append(os.fspath(_SHARED_MEMORY))
        _mount("tmpfs", own[-1], "tmpfs", _NOSUID | _NODEV | _NOEXEC, _SHARED_OPTIONS)
    _set_attributes("/", _AT_RECURSIVE, on=_ATTR_RDONLY)
    for path in own:
        _set_attributes(path, 0, off=_ATTR_RDONLY)


def own_proc() -> None:
    """Give the first process of new PID and mount namespaces a /proc of its own. Raises OSError."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    mount_proc()


def mount_proc() -> None:
    """Mount the processes of this PID namespace at /proc. Raises OSError."""
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)


def _beside_processes() -> list[str]:
    """Entries of /proc besides folders of processes, and links to them."""
    entries = [entry for entry in os.scandir("/proc") if not entry.is_symlink()]
    return [entry.path for entry in entries if not entry.name.isdigit()]


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    *words, data = [None if word is None else word.encode() for word in (source, target, kind, options)]
    _check(_libc().mount(*words, ctypes.c_ulong(flags), data), target)


def _set_attributes(path: str, flags: int, on: int = 0, off: int = 0) -> None:
    attributes = struct.pack("<QQQQ", on, off, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    _check(_libc().syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, size), path)


def _check(result: int, path: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
