"""Which files each role may read and write; `landlock` enforces it.

A builder or candidate reads the system's programs and libraries, the Python installation and the few
files of kernelwright that a candidate imports. It does not read tasks, home folders, other workers'
folders or raw devices. The oracle and the baselines run the user's own task and read everything.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_TASKS = PACKAGE / "tasks"
_IMPORTED = ("__init__.py", "errors.py", "records.py", "jit")  # of the package, by candidates
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "nsswitch.conf",
        "localtime", "timezone", "os-release")  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True)
class Access:
    """What lies beneath these paths may be read, listed or changed."""

    read: tuple[Path, ...]
    enumerate: tuple[Path, ...]
    write: tuple[Path, ...]


def access(role: str, scratch: Path, cache: Path, trusted: bool) -> Access:
    """`cache`: the role's build cache, which a candidate only reads."""
    devices = tuple(Path("/dev") / name for name in _DEVICES)
    if trusted:
        inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache))
        return Access((Path("/"),), (), (scratch, cache, inductor, *devices))
    writable = (scratch, cache, *devices) if role == "builder" else (scratch, *devices)
    installed = (Path(sys.prefix), Path(sys.base_prefix))
    read = (
        *map(Path, _SYSTEM),
        *(Path("/etc") / name for name in _ETC),
        *(path for root in installed for path in _without_tasks(root)),
        *(PACKAGE / name for name in _IMPORTED),
        *_toolchains(),
        cache,
    )
    return Access(read, installed, writable)


def _without_tasks(root: Path) -> Iterator[Path]:
    """`root` or, where the tasks lie in it, all in it but them."""
    if not _TASKS.is_relative_to(root):
        yield root
        return
    for path in root.iterdir():
        if path != _TASKS:
            yield from _without_tasks(path)


def _toolchains() -> Iterator[Path]:
    """Folders outside the system's that a compiler or its libraries lie in."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is not None:
        yield Path(found).resolve().parents[1]
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME"):
        yield from (Path(part) for part in os.environ.get(name, "").split(":") if part.startswith("/"))
