"""Machines that are not here: what Linux would say of their CPUs, caches, memory and control groups."""

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.kernelbench import control_groups, cpu_caches, machine
from kernelwright.kernelbench.evaluator.memory import eviction

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Machine:
    """CPUs are numbered as Linux does it: one of every core first, then their hyperthreads."""

    cpus: int = 2
    per_core: int = 1  # CPUs, hyperthreads, of a core
    cache_mib: int | None = 32  # of each last-level cache; None: nothing is told of any cache
    caches: int = 1  # last-level caches: several chips, or several groups of cores on a chip
    memory_gib: float = 16
    free_gib: float = 12
    quota: float | None = None  # CPUs, of a container
    container_gib: float | None = None  # memory
    groups: int = 2  # version of the control groups

    @property
    def cores(self) -> int:
        return self.cpus // self.per_core

    def write(self, folder: Path) -> None:
        """As files below `folder`: cpu, meminfo, cgroup."""
        for cpu in range(self.cpus):
            core = cpu % self.cores
            siblings = ",".join(str(core + i * self.cores) for i in range(self.per_core))
            _write(folder / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list", siblings)
            for number, cache in enumerate(self._caches_of(core, siblings)):
                for name, text in cache.items():
                    _write(folder / "cpu" / f"cpu{cpu}" / "cache" / f"index{number}" / name, text)
        counts = {"MemTotal": self.memory_gib, "MemAvailable": self.free_gib}
        lines = [f"{name}:  {int(gib * GIB) >> 10} kB" for name, gib in counts.items()]
        _write(folder / "meminfo", "\n".join(lines))
        (folder / "cgroup").mkdir()
        if self.groups:
            self._write_groups(folder / "cgroup")
        _write(
            folder / "own",
            "0::/pod/container\n" if self.groups == 2 else "3:cpu,cpuacct:/pod\n2:memory:/pod\n",
        )

    def _caches_of(self, core: int, siblings: str) -> Iterator[dict[str, str]]:
        if self.cache_mib is None:
            return
        yield {"level": "1", "type": "Data", "size": "32K", "shared_cpu_list": siblings}
        yield {"level": "1", "type": "Instruction", "size": "32K", "shared_cpu_list": siblings}
        yield {"level": "2", "type": "Unified", "size": "512K", "shared_cpu_list": siblings}
        each = self.cores // self.caches
        first = core // each * each
        shared = ",".join(
            f"{first + i * self.cores}-{first + each - 1 + i * self.cores}" for i in range(self.per_core)
        )
        size = f"{self.cache_mib << 10}K"
        yield {"level": "3", "type": "Unified", "size": size, "shared_cpu_list": shared}

    def _write_groups(self, folder: Path) -> None:
        taken = int((self.memory_gib - self.free_gib) * GIB)
        quota = self.quota and int(100_000 * self.quota)
        most = self.container_gib and int(self.container_gib * GIB)
        if self.groups == 2:
            own = folder / "pod" / "container"
            _write(folder / "pod" / "cpu.max", f"{quota or 'max'} 100000")  # the parent's counts too
            _write(own / "cpu.max", "max 100000")
            _write(own / "memory.max", str(most or "max"))
            _write(own / "memory.current", str(min(taken, most or taken)))
            _write(own / "memory.stat", "anon 1\ninactive_file 0")
        else:
            _write(folder / "cpu" / "pod" / "cpu.cfs_quota_us", str(quota or -1))
            _write(folder / "cpu" / "pod" / "cpu.cfs_period_us", "100000")
            own = folder / "memory" / "pod"
            _write(own / "memory.limit_in_bytes", str(most or 1 << 62))
            _write(own / "memory.usage_in_bytes", str(min(taken, most or taken)))
            _write(own / "memory.stat", "cache 1\ninactive_file 0")


def pretend(given: Machine, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Have this process believe that it runs on `given`; what it starts sees the true machine."""
    given.write(folder)
    patch.setattr(cpu_caches, "DEVICES", folder / "cpu")
    patch.setattr(machine, "_MEMORY_INFO", folder / "meminfo")
    patch.setattr(control_groups, "MOUNT", folder / "cgroup")
    patch.setattr(control_groups, "OWN", folder / "own")
    patch.setattr(os, "sched_getaffinity", lambda _: set(range(given.cpus)))
    patch.setattr(eviction, "of_machine", functools.cache(eviction.of_machine.__wrapped__))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
