"""Limits of control groups on this process, as in a container: CPU time and memory.

Version 2 has cpu.max and memory.max (https://docs.kernel.org/admin-guide/cgroup-v2.html), version 1
cpu.cfs_quota_us and memory.limit_in_bytes. A group's limits hold for all groups below it, so those of its
parents count as well, as far as they can be seen: in a container the group is often the root of the mount.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota() -> float | None:
    """Return the CPUs that this process's groups may keep busy together; None without a limit."""
    quotas = []
    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            allowed, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(allowed) / int(period))
        with contextlib.suppress(OSError, ValueError):
            allowed_us = int((folder / "cpu.cfs_quota_us").read_text())
            if allowed_us > 0:  # -1 is no limit
                quotas.append(allowed_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min(quotas, default=None)


def memory_limits() -> list[tuple[int, int]]:
    """Return each group's memory limit and usage in bytes; usage excludes reclaimable file cache."""
    found = []
    for folder in _folders("memory"):
        for most, taken in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                allowed, used = int((folder / most).read_text()), int((folder / taken).read_text())
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                found.append((allowed, used - int(counts.get("inactive_file", 0))))
    return found


def _folders(controller: str) -> Iterator[Path]:
    """Yield this process's group of version 2 and of version 1's `controller`, with their parents."""
    paths = {"": "/", controller: "/"}  # of version 2, of version 1
    with contextlib.suppress(OSError, ValueError):
        for line in OWN.read_text().splitlines():
            _, names, path = line.split(":", 2)
            for name in names.split(","):
                if name in paths:
                    paths[name] = path
    for name, path in paths.items():
        top = MOUNT / name
        own = top / path.lstrip("/")
        yield own
        while own != top:
            own = own.parent
            yield own
