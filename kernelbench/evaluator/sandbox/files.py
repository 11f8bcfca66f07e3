"""Files that each role may read and write; `landlock` enforces it.

A builder or candidate reads the system's programs and libraries, the Python installation and the few
files of kernelwright that a candidate imports. It does not read tasks, home folders, other workers'
folders, other candidates' builds or raw devices. The oracle and the baselines run the user's own task
and read everything.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]  # kernelbench, with its tasks
_FRONT = Path(__file__).parents[3]  # kernelwright: in a checkout, a folder of links to the rooms
_IMPORTED = ("__init__.py", "errors.py", "records.py", "jit")  # of kernelbench, by candidates
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "nsswitch.conf",
        "localtime", "timezone", "os-release")  # fmt: skip
SHARED_MEMORY = Path("/dev/shm")
# Variables that name folders, or a program: of the CUDA toolkit, libraries, what Triton builds with.
_TOOLS = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
          "TRITON_PTXAS_BLACKWELL_PATH")  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True)
class FileAccess:
    """Paths beneath which files may be read, listed or changed."""

    read: tuple[Path, ...]
    enumerate: tuple[Path, ...]
    write: tuple[Path, ...]


def access(
    role: str,
    scratch: Path,
    cache: Path,
    headers: Path | None,
    private: bool = False,
    processes: Path | None = None,
) -> FileAccess:
    """Paths that a role may access.

    `cache`: the role's build cache, which a candidate only reads; `headers`: None for trusted roles;
    `private`: True if it has a file system view of its own, with a /dev/shm for its own semaphores;
    `processes`: the part of /proc that may be written to, None for nothing of it.
    """
    devices = (*(Path("/dev") / name for name in _DEVICES), *_gpus(), *filter(None, [processes]))
    if headers is None:
        inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache))
        shared = (role == "baseline") * [SHARED_MEMORY]  # for the semaphores of Inductor's compilers
        return FileAccess((Path("/"),), (), (scratch, cache, inductor, *shared, *devices))
    own = (scratch, *(private * [SHARED_MEMORY]))
    writable = (*own, cache, *devices) if role == "builder" else (*own, *devices)
    # Landlock can only add: where our package lies beneath a folder, what else is in it is named instead.
    roots = [path.resolve() for path in map(Path, (*_SYSTEM, sys.prefix, sys.base_prefix))]
    roots += [*installed(), *_toolchains()]
    read = (
        *(path for root in roots for path in _without_package(root)),
        *(Path("/etc") / name for name in _ETC),
        *(_FRONT / name for name in ("__init__.py", "jit.py")),
        *(PACKAGE / name for name in _IMPORTED),
        cache,
        headers,
    )
    return FileAccess(read, tuple(roots), writable)


def installed() -> Iterator[Path]:
    """Return the folders on Python's path, outside the environment's, that packages were installed to."""
    for name in dict.fromkeys(sys.path):
        path = Path(name).resolve()
        if not path.is_relative_to(Path(sys.prefix).resolve()) and any(path.glob("*.dist-info")):
            yield path


def _gpus() -> Iterator[Path]:
    """Files that the CUDA driver opens; none where there is no GPU."""
    yield from Path("/dev").glob("nvidia*")


def _without_package(root: Path) -> Iterator[Path]:
    """`root` or, where our package with its tasks lies in it, all in it but that."""
    if not PACKAGE.is_relative_to(root):
        yield root
    elif root != PACKAGE:
        for path in root.iterdir():
            if not path.is_symlink():  # what it points to is named itself, or lies elsewhere
                yield from _without_package(path)


def _toolchains() -> Iterator[Path]:
    """Folders outside the system's that a compiler, a profiler or its libraries lie in."""
    for name, usual in (("CXX", "g++"), ("CC", "gcc")):
        found = shutil.which(os.environ.get(name, usual))
        if found is not None:  # by name: a compiler in ~/bin must not open a home folder
            prefix = Path(found).resolve().parents[1]
            yield from (prefix / part for part in ("bin", "lib", "lib64", "libexec", "include"))
            yield from prefix.glob(f"{platform.machine()}-*")
    yield from Path("/opt/nvidia").glob("nsight-compute")  # where the toolkit's ncu leads to
    for name in _TOOLS:
        given = os.environ.get(name, "").split(":")
        yield from (Path(part).resolve() for part in given if part.startswith("/"))
