"""Control groups: what a worker's whole process tree may take, where the referee may make groups.

Version 2 has to be delegated: the referee must be alone in a group that it may write to, as in
`systemd-run --user --scope -p Delegate=yes kernelwright ...`; it then moves into a leaf of that group, for
the rest of its life. Of version 1 the referee's own groups have to be writable, as they are for root.
"""

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LIMITS = {  # controller -> the files that take its limit, those of either version
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max",),
}
_BESIDE = {"memory.swap.max": "0", "memory.oom.group": "1"}  # of version 2, where the kernel has them
_OLD_S = 60.0
_LEAF = "kernelwright-judge"
_numbers = itertools.count()


@dataclass(frozen=True)
class Group:
    """One worker's groups, by controller; the same folder for both in version 2."""

    folders: Mapping[str, Path]

    @property
    def entrances(self) -> tuple[str, ...]:
        """The files that a process writes 0 to in order to join."""
        return tuple(sorted({str(folder / "cgroup.procs") for folder in self.folders.values()}))

    @property
    def out_of_memory(self) -> bool:
        """True if a process of the group was killed because together they took too much."""
        for name in ("memory.events", "memory.oom_control"):
            for line in _lines(self.folders["memory"] / name):
                if line.startswith("oom_kill "):
                    return int(line.split()[1]) > 0
        return False

    def remove(self) -> bool:
        """Remove the group; return False as long as a process of it has not quite ended."""
        for folder in set(self.folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


@dataclass(frozen=True)
class Parents:
    """Folders in which control groups for workers can be created, by controller."""

    folders: Mapping[str, Path]

    def make(self, memory_bytes: int, processes: int) -> Group:
        """Return a group whose processes take so much memory together and, threads counted, are so many.

        Raises OSError.
        """
        name = f"kernelwright-{os.getpid()}-{next(_numbers)}"
        group = Group({controller: folder / name for controller, folder in self.folders.items()})
        try:
            for controller, folder in group.folders.items():
                folder.mkdir(exist_ok=True)
                limit = {"memory": memory_bytes, "pids": processes}[controller]
                file = next(folder / name for name in _LIMITS[controller] if (folder / name).exists())
                file.write_text(str(limit))
            for file_name, value in _BESIDE.items():
                with contextlib.suppress(OSError):
                    (group.folders["memory"] / file_name).write_text(value)
        except OSError:
            group.remove()
            raise
        return group

    def sweep(self) -> None:
        """Remove the groups of judges that were killed."""
        for parent in set(self.folders.values()):
            for folder in parent.glob("kernelwright-*-*"):
                with contextlib.suppress(OSError):  # not empty, or somebody else was faster
                    old = time.time() - folder.stat().st_mtime > _OLD_S
                    if old and not Path("/proc", folder.name.split("-")[1]).exists():
                        folder.rmdir()


@functools.cache
def parents() -> Parents | str:
    """Return the folders for groups, or the reason why there are none.

    Moves this process in version 2; see above.
    """
    try:
        found = _version_2() or _version_1()
        if found is None:
            return "this machine mounts no control groups for memory and processes"
        found.sweep()
        found.make(1 << 30, 64).remove()
    except OSError as error:
        return f"{error.strerror}; start it in a group of its own: systemd-run --user --scope -p Delegate=yes"
    return found


def _version_2() -> Parents | None:
    """Return the folders of version 2. Raises OSError where there is one that has not been delegated."""
    own = _own_folder("")
    if own is None or not set(_LIMITS) <= set((own / "cgroup.controllers").read_text().split()):
        return None
    others = [pid for pid in (own / "cgroup.procs").read_text().split() if int(pid) != os.getpid()]
    if others:
        raise OSError(0, "other processes share this process's control group")
    (own / _LEAF).mkdir(exist_ok=True)
    (own / _LEAF / "cgroup.procs").write_text("0")
    (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _LIMITS))
    return Parents(dict.fromkeys(_LIMITS, own))


def _version_1() -> Parents | None:
    folders = {name: _own_folder(name) for name in _LIMITS}
    found = {name: folder for name, folder in folders.items() if folder is not None}
    return Parents(found) if len(found) == len(_LIMITS) else None


def _own_folder(controller: str) -> Path | None:
    """Return the folder of this process's group: of `controller` in version 1; if empty, of version 2."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            break
    else:
        return None
    for line in _lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind != ("cgroup" if controller else "cgroup2") or controller not in ("", *options.split(",")):
            continue
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return Path(mounted + path.removeprefix(root.rstrip("/")))
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
