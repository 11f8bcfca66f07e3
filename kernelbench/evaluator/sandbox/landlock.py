"""Landlock: which files a process, and all it starts, may read and write from now on (Linux 5.13 and later).

A process gives the rest up by itself, needs no privilege for it and cannot take it back. What this does
not restrict: files that are open already, `stat`, and memory that is mapped.
https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
# How many kinds of access each version knows: 2 added linking, 3 truncation, 5 ioctl on devices.
_KNOWN = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SCOPES = 0b11  # from version 6: no abstract sockets of, and no signals to, processes outside


def version() -> int:
    """Return the version of Landlock that this kernel offers; 0 without any."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)))


def restrict(read: Iterable[Path], write: Iterable[Path], enumerate: Iterable[Path] = ()) -> None:
    """Let this process only read (and execute) what lies beneath `read`, and do anything beneath `write`.

    Beneath `enumerate` it may list folders. Paths that do not exist are left out. Needs no_new_privs.
    Raises OSError.
    """
    known = version()
    if not known:
        raise OSError("this kernel has no Landlock")
    handled = (1 << _KNOWN[min(known, max(_KNOWN))]) - 1
    attributes = struct.pack("<QQQ", handled, 0, _SCOPES)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = _call(_CREATE_RULESET, attributes[:size], ctypes.c_size_t(size), 0)
    try:
        for path in read:
            _allow(ruleset, path, handled & _READ)
        for path in enumerate:
            _allow(ruleset, path, _READ_DIR)
        for path in write:
            _allow(ruleset, path, handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            access &= _OF_FILES
        if access:  # a file that may be enumerated: a rule that grants nothing is refused
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("<Qi", access, fd), 0)
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
