"""What a machine is taken for: its CPUs, caches and memory, and what a container leaves of them."""

import resource
from pathlib import Path

import pytest

from kernelwright.kernelbench import control_groups, machine
from tests.helpers.pretended import GIB, MIB, Machine, pretend


def test_this_machine_is_taken_for_something() -> None:
    mark = machine.fingerprint(machine.physical_threads())
    assert 1 <= mark.threads <= machine.usable_cpus() * 8
    assert 0 < machine.allocatable_bytes() <= mark.memory_bytes
    assert 0 < machine.available_bytes() <= mark.memory_bytes
    assert mark.last_level_cache_bytes > 0


@pytest.mark.parametrize("groups", [1, 2])
def test_a_container_s_memory_counts(groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(Machine(memory_gib=16, free_gib=13, container_gib=4, groups=groups), tmp_path, monkeypatch)
    assert machine.memory_bytes() == machine.fingerprint(1).memory_bytes == 4 * GIB
    assert machine.available_bytes() == 1 * GIB


@pytest.mark.parametrize("groups", [1, 2])
def test_files_that_can_be_read_anew_leave_a_container_its_memory(
    groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(Machine(memory_gib=16, free_gib=13, container_gib=4, groups=groups), tmp_path, monkeypatch)
    (stat,) = tmp_path.glob("cgroup/**/memory.stat")
    stat.write_text(f"anon 5\ninactive_file {2 * GIB}\n")
    assert machine.available_bytes() == 3 * GIB


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_without_a_limit_all_of_the_memory_is_there(
    groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(Machine(memory_gib=16, free_gib=13, groups=groups), tmp_path, monkeypatch)
    assert machine.memory_bytes() == 16 * GIB
    assert machine.available_bytes() == 13 * GIB
    assert control_groups.cpu_quota() is None


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (1.5, 1), (4.0, 4), (100.0, 16)])
def test_threads_are_as_many_as_a_container_may_keep_busy(
    groups: int, quota: float, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More would be stopped for the rest of each period, all at a time, in the middle of a timed block."""
    pretend(Machine(cpus=32, per_core=2, quota=quota, groups=groups), tmp_path, monkeypatch)
    assert machine.physical_threads() == threads
    assert machine.usable_cpus() == min(32, max(1, int(quota)))


@pytest.mark.parametrize(("cpus", "per_core"), [(1, 1), (2, 1), (2, 2), (64, 2), (128, 1), (128, 2)])
def test_hyperthreads_are_counted_once(
    cpus: int, per_core: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(Machine(cpus=cpus, per_core=per_core), tmp_path, monkeypatch)
    assert machine.physical_threads() == cpus // per_core
    assert machine.usable_cpus() == cpus


@pytest.mark.parametrize(
    ("machine_has", "count", "parts"),
    [
        (Machine(cpus=8), 2, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        (Machine(cpus=8, per_core=2), 2, [{0, 4, 1, 5}, {2, 6, 3, 7}]),
        (Machine(cpus=6, per_core=2), 2, [{0, 3}, {1, 4, 2, 5}]),
        (Machine(cpus=2), 2, [{0}, {1}]),
        (Machine(cpus=4, per_core=2), 4, [{0, 1, 2, 3}] * 4),
    ],
)
def test_devices_have_whole_cores_of_their_own(
    machine_has: Machine,
    count: int,
    parts: list[set[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(machine_has, tmp_path, monkeypatch)
    assert machine.parts_of_cpus(count) == parts


@pytest.mark.parametrize("cache_mib", [1, 8, 32, 260, 1024])
@pytest.mark.parametrize(("cpus", "caches"), [(1, 1), (16, 1), (128, 16)])
def test_last_level_caches_are_added_up(
    cache_mib: int, cpus: int, caches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all of this process's CPUs hold: threads on all of them copy, and keep their inputs."""
    pretend(Machine(cpus=cpus, cache_mib=cache_mib, caches=caches), tmp_path, monkeypatch)
    found = machine.last_level_caches()
    assert [cache.size_bytes for cache in found] == [cache_mib * MIB] * caches
    assert sorted(cpu for cache in found for cpu in cache.cpus) == list(range(cpus))
    assert machine.fingerprint(1).last_level_cache_bytes == caches * cache_mib * MIB


def test_caches_of_other_processes_cpus_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(Machine(cpus=16, cache_mib=32, caches=4), tmp_path, monkeypatch)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 6, 8})
    assert [sorted(cache.cpus) for cache in machine.last_level_caches()] == [[5, 6], [8]]


def test_an_unknown_cache_is_taken_for_a_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(Machine(cpus=4, cache_mib=None), tmp_path, monkeypatch)
    (found,) = machine.last_level_caches()
    assert (found.size_bytes, found.cpus) == (machine.UNKNOWN_CACHE_BYTES, {0, 1, 2, 3})


def test_a_third_level_that_is_not_told_of_may_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As virtual machines have it, which show the second level as the last."""
    pretend(Machine(cpus=2), tmp_path, monkeypatch)
    for level in tmp_path.glob("cpu/cpu*/cache/index3/level"):
        level.unlink()
    assert sum(cache.size_bytes for cache in machine.last_level_caches()) == machine.UNKNOWN_CACHE_BYTES


def test_a_process_s_own_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `ulimit -v`."""
    free = machine.allocatable_bytes()
    limit = {resource.RLIMIT_AS: 1 << 20, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit[kind], limit[kind]))
    assert machine.allocatable_bytes() == 1 << 20 < free
