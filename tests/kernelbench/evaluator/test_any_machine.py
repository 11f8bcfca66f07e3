"""The evaluator on machines of any size: what depends on caches, CPUs and memory is bounded by what is there."""

import os
import resource
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.cpu_caches import SharedCache
from kernelwright.kernelbench.evaluator import EAGER, Effort, Limits, Protocol, Referee
from kernelwright.kernelbench.evaluator.memory import eviction, native
from kernelwright.kernelbench.evaluator.memory.budget import HostBudget
from kernelwright.kernelbench.evaluator.memory.eviction import Eviction
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.sessions import Sessions
from kernelwright.kernelbench.evaluator.timing import ceilings
from kernelwright.kernelbench.evaluator.timing import target as target_module
from kernelwright.kernelbench.evaluator.timing.target import detect_target
from kernelwright.kernelbench.records import Ceilings, Verdict, Work
from kernelwright.kernelbench.speed_of_light import floor_us, score_of
from kernelwright.profiling.roofline import in_words, roofline
from kernelwright.results import formatting
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant
from tests.helpers.gpu.h100 import H100
from tests.helpers.pretended import GIB, MIB, Machine, pretend

pytestmark = pytest.mark.builds

BRIEF = Protocol(
    effort=Effort(rounds=2, processes=1, most_processes=1, half_width=1.0), min_rounds=2, block_s=0.005
)


@pytest.fixture(autouse=True)
def measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: what is measured does not matter here."""
    monkeypatch.setattr(target_module, "_MEASURED", 1)
    monkeypatch.setattr(target_module, "_MOST_MEASURED", 1)


class Copies:
    """Stands for the measurements, and keeps what they were asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        patch.setattr(ceilings, "_copied", self._copied)
        patch.setattr(ceilings, "_multiplied", lambda *_: None)

    def _copied(self, total_bytes: int, _: object) -> None:
        self.asked.append(total_bytes)


@pytest.mark.parametrize("cache_mib", [1, 8, 32, 260, 1024])
@pytest.mark.parametrize("free_gib", [0.25, 2, 16, 512])
def test_what_is_copied_fits_into_memory_and_not_into_the_cache(
    cache_mib: int, free_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, most = Copies(monkeypatch), int(free_gib * GIB) // 4
    ceilings._measured(cache_mib * MIB, most, ceilings.torch.device("cpu"))
    assert all(0 < size <= most for size in copies.asked)
    *beyond, inside = copies.asked
    assert inside <= max(MIB, cache_mib * MIB // 8)
    assert beyond or most < 3 * cache_mib * MIB  # else there is no telling what memory gives
    assert all(size >= 3 * cache_mib * MIB for size in beyond)


def test_what_cannot_be_allocated_is_not_known() -> None:
    """The measurement itself, in a process that may not have as much as it was told."""
    code = """
    import resource, torch
    from kernelwright.kernelbench.evaluator.timing.ceilings import _measured
    used = next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmData")) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (200 << 20),) * 2)
    found = _measured(1 << 20, 4 << 30, torch.device("cpu"))
    assert found["copy_bytes_s"] is None, found
    assert found["cached_copy_bytes_s"] > 1e8, found
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=Path.cwd())


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        Machine(cache_mib=260),
        Machine(cache_mib=1024, caches=2, free_gib=2),
        Machine(cache_mib=None, memory_gib=2, free_gib=1, groups=0),
        Machine(cpus=128, cache_mib=16, caches=16, quota=1.5, container_gib=3, memory_gib=512, free_gib=511),
    ],
    ids=["a server chip's cache", "a cache as large as memory", "a small machine", "a container"],
)
def test_ceilings_are_measured_or_unknown_and_never_fatal(
    given: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the evaluator's own limits are."""
    pretend(given, tmp_path / "machine", monkeypatch)
    limits = Limits(memory_bytes=1 << 30)
    with WorkerPool(threads=2, cache=tmp_path / "cache", limits=limits) as pool:
        target = detect_target(pool)
    found, mark = target.ceilings, target.fingerprint
    known = 3 * mark.last_level_cache_bytes <= min(given.free_gib, (given.container_gib or 512) - 1) * GIB / 4
    assert (found.copy_bytes_s is not None) == known
    assert found.cached_copy_bytes_s is not None and found.fp32_flops_s is not None
    assert found.disturbed is not None


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 128])
def test_as_many_threads_as_a_machine_has_may_be_started(threads: int, tmp_path: Path) -> None:
    """They count as processes, and their stacks as memory."""
    limits = Limits(memory_bytes=1 << 30, processes=16)
    with (
        WorkerPool(threads=threads, cache=tmp_path, limits=limits) as pool,
        pool.start("baseline", "tests.helpers.evaluator.many_threads:serve") as worker,
    ):
        assert worker.ask({"do": "start"}, 60) == {"threads": threads}


def caches_of(*sizes: int) -> list[SharedCache]:
    return [SharedCache(3, size, frozenset(os.sched_getaffinity(0))) for size in sizes]


@pytest.mark.parametrize("size", [1 * MIB, 32 * MIB, 260 * MIB, 1024 * MIB])
def test_caches_are_emptied_with_no_more_memory_than_may_be_had(size: int) -> None:
    evict = Eviction(caches_of(size), 64 * MIB)
    assert evict.size_bytes == min(3 * size // 2, 64 * MIB)
    assert evict.complete == (3 * size // 2 <= 64 * MIB)
    evict()


def test_every_last_level_cache_is_emptied_by_the_cpus_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU reads through the caches that it has, and leaves those of others as they are."""
    read: dict[int, tuple[int, int]] = {}  # by CPU: the thread, and bytes

    class Watched(Eviction):
        def _read_on(self, cpu: int, words: np.ndarray) -> None:
            read[cpu] = threading.get_ident(), words.nbytes
            super()._read_on(cpu, words)

    moved: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: moved.append(cpus))
    caches = [SharedCache(3, MIB, frozenset({0, 1})), SharedCache(3, MIB, frozenset({2, 3}))]
    Watched(caches, GIB)()
    assert sorted(map(sorted, moved)) == [[0], [1], [2], [3]]
    assert {cpu: size for cpu, (_, size) in read.items()} == dict.fromkeys(range(4), 3 * MIB // 4)
    assert threading.get_ident() not in {
        ident for ident, _ in read.values()
    }  # this thread stays where it was


@pytest.mark.slow
def test_one_process_has_one_memory_to_empty_caches_with(evaluator: Referee) -> None:
    """However many sessions it has: of a server chip it is hundreds of megabytes."""
    first = evaluator.sessions.open(task_of(REFERENCE)).oracle.memory
    second = evaluator.sessions.open(task_of(REFERENCE + "\n# another")).oracle.memory
    assert first is not second
    assert first._evict is second._evict is eviction.of_machine()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_candidate_is_judged_where_no_ceiling_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last-level cache of a gigabyte, and not the memory to empty it or to copy past it."""
    given = Machine(cache_mib=1024, memory_gib=3, free_gib=1.5)
    pretend(given, tmp_path / "machine", monkeypatch)
    limits = Limits(memory_bytes=1 << 30)
    with Referee.start(cache=tmp_path / "cache", protocol=BRIEF, limits=limits, threads=2) as evaluator:
        unknown = Ceilings(copy_bytes_s=None, cached_copy_bytes_s=None, fp32_flops_s=None)
        target = evaluator.target.model_copy(update={"ceilings": unknown})
        evaluator.sessions._machine.target = target
        task, candidate = task_of(REFERENCE), candidate_of(variant("Model", "Model"))
        evaluation = evaluator.evaluate(task, candidate, EAGER)
        session = evaluator.sessions.open(task)
        assert isinstance(session.budget, HostBudget)
        assert session.budget.outputs_bytes == 3 * GIB // 8  # of a worker, on so small a machine
        profile = roofline(evaluator.work(task), target, evaluation)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.environment.caches == "hot"  # they could not be emptied
    assert profile is not None and profile.speed_of_light is None and in_words(profile) == ""
    assert evaluation.timing is not None and evaluation.timing.floor_us is None
    assert score_of(evaluation) is None


def test_a_product_s_floor_needs_no_bandwidth_and_a_copy_s_no_peak(evaluator: Referee) -> None:
    task = task_of(REFERENCE)
    evaluation = evaluator.evaluate(task, candidate_of(variant("Model", "Model")), EAGER)
    assert evaluation.timing is not None
    assert evaluation.timing.floor_us == floor_us(evaluator.work(task), evaluation.target.ceilings)
    some = Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=None, fp32_flops_s=None)
    target = evaluator.target.model_copy(update={"ceilings": some})
    moved = Work(input_bytes=10**6, weight_bytes=0, output_bytes=0, flops=0)
    known = roofline(moved, target, evaluation)
    assert known is not None and known.speed_of_light == pytest.approx(
        100 / evaluation.timing.candidate_us.median
    )
    products = roofline(moved.model_copy(update={"flops": 10**9}), target, evaluation)
    assert products is not None and products.speed_of_light is None
    assert products.value("memory_floor") == pytest.approx(100)
    assert products.value("compute_floor") is None


def test_unknown_ceilings_are_said_to_be_unknown() -> None:
    some = Ceilings(copy_bytes_s=None, cached_copy_bytes_s=5e10, fp32_flops_s=2e11)
    assert formatting.ceilings(some) == "copy unknown (cached 50.0 GB/s), fp32 200 GFLOP/s"
    assert formatting.products(some.model_copy(update={"bf16_flops_s": 4e11})) == "fp32 200, bf16 400 GFLOP/s"
    none = some.model_copy(update={"fp32_flops_s": None})
    assert formatting.ceilings(none) == "copy unknown (cached 50.0 GB/s), products unknown"
    assert formatting.products(H100.ceilings).startswith("fp32 67, tf32 495,")


def test_without_avx_512_the_evaluator_s_own_loops_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler for an older CPU; what it builds runs here as well."""
    older = tmp_path / "g++"
    older.write_text('#!/bin/sh\nexec g++ "$@" -march=x86-64-v3\n')
    older.chmod(0o755)
    monkeypatch.setenv("CXX", str(older))
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    for name, flags in native._FLAGS.items():
        library = jit.compile_cpp((Path(native.__file__).parent / f"{name}.cpp").read_text(), flags=flags)
        text = subprocess.run(
            ["objdump", "-d", str(jit.library.path_of(library))], capture_output=True, text=True, check=True
        ).stdout
        assert "ymm" in text and "zmm" not in text


@pytest.mark.slow
def test_a_limit_of_the_judge_s_own_is_no_obstacle(tmp_path: Path) -> None:
    """As after `ulimit -v`: what workers may take is bounded by it, not refused."""
    code = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    from pathlib import Path
    from kernelwright.kernelbench.evaluator import Limits
    from kernelwright.kernelbench.evaluator.timing import target
    from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
    with WorkerPool(threads=1, cache=Path({str(tmp_path)!r}), limits=Limits(memory_bytes=64 << 30)) as pool:
        assert target._measure_once(pool, "cpu", target.fingerprint(1)).copy_bytes_s
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=Path.cwd())
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def measuring(patch: pytest.MonkeyPatch, *found: Ceilings) -> list[Ceilings]:
    """Have measurements come to these; the list has those that are left."""
    left = list(found)
    patch.setattr(target_module, "_PAUSE_S", 0.0)
    patch.setattr(target_module, "_MEASURED", 3)
    patch.setattr(target_module, "_MOST_MEASURED", 6)
    patch.setattr(target_module, "_measure_once", lambda *_: left.pop(0))
    return left


def ceilings_of(copy: float | None, disturbed: float) -> Ceilings:
    return Ceilings(copy_bytes_s=copy, cached_copy_bytes_s=1e11, fp32_flops_s=1e11, disturbed=disturbed)


def test_ceilings_of_a_busy_machine_are_not_believed(
    evaluator: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are measured until nobody is in the way, marked where somebody always is, and measured once more."""
    monkeypatch.setattr(evaluator.sessions.pool, "cache", tmp_path)
    left = measuring(monkeypatch, *(ceilings_of(1e9 * number, 0.3) for number in range(1, 7)))
    found = detect_target(evaluator.sessions.pool).ceilings
    assert found.busy and found.copy_bytes_s == 6e9 and not left
    assert "measured on a busy machine" in formatting.ceilings(found)

    left = measuring(monkeypatch, ceilings_of(2e10, 0.001), ceilings_of(9e10, 0.001))
    found = detect_target(evaluator.sessions.pool).ceilings
    assert not found.busy and found.copy_bytes_s == 2e10
    assert detect_target(evaluator.sessions.pool).ceilings == found and len(left) == 1
    assert "busy" not in formatting.ceilings(found)


def test_ceilings_are_measured_until_nobody_is_in_the_way(
    evaluator: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator.sessions.pool, "cache", tmp_path)
    rates = [(1e9, 0.3), (2e9, 0.4), (3e9, 0.3), (2e10, 0.0), (1e9, 0.3)]
    left = measuring(monkeypatch, *(ceilings_of(*each) for each in rates))
    assert detect_target(evaluator.sessions.pool).ceilings == ceilings_of(2e10, 0.0)
    assert len(left) == 1


def test_ceilings_in_doubt_are_measured_again_once_by_all_siblings(
    evaluator: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel in a faster precision would have them measured after each candidate."""
    monkeypatch.setattr(evaluator.sessions.pool, "cache", tmp_path)
    sessions = Sessions(evaluator.sessions.pool, evaluator.sessions.protocol, evaluator.sessions.limits)
    left = measuring(
        monkeypatch, *3 * [ceilings_of(1e10, 0.0)], ceilings_of(2e10, 0.0), ceilings_of(3e10, 0.0)
    )
    assert sessions.target.ceilings.copy_bytes_s == 1e10
    assert sessions.measure_again_once().ceilings.copy_bytes_s == 2e10
    sibling = sessions.sibling()
    assert sibling.measure_again_once().ceilings.copy_bytes_s == 2e10 and len(left) == 1
    assert sibling.measure_again().ceilings.copy_bytes_s == 3e10  # what a verdict depends on is
    assert sessions.target.ceilings.copy_bytes_s == 3e10


def test_ceilings_of_a_machine_that_was_busy_then_too_are_measured_once_more_later(
    evaluator: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator.sessions.pool, "cache", tmp_path)
    sessions = Sessions(evaluator.sessions.pool, evaluator.sessions.protocol, evaluator.sessions.limits)
    left = measuring(monkeypatch, *10 * [ceilings_of(1e10, 0.3)])
    sessions.measure_again_once()
    before = len(left)
    sessions.measure_again_once()
    assert len(left) == before
    sessions._machine.measured_again_at = -1e9
    sessions.measure_again_once()
    assert len(left) == before - 1


def test_what_one_measurement_could_not_find_another_may(
    evaluator: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when there is more memory the next time."""
    monkeypatch.setattr(evaluator.sessions.pool, "cache", tmp_path)
    measuring(monkeypatch, *3 * [ceilings_of(None, 0.0)], ceilings_of(3e10, 0.0))
    rates = [detect_target(evaluator.sessions.pool).ceilings.copy_bytes_s for _ in range(3)]
    assert rates == [None, 3e10, 3e10]
    found = ceilings_of(None, 0.1).or_higher(ceilings_of(3e10, 0.2))
    assert (found.copy_bytes_s, found.disturbed) == (3e10, 0.1)
    assert ceilings_of(None, 0.1).or_higher(ceilings_of(None, 0.0)).copy_bytes_s is None


@pytest.mark.slow
def test_waiting_for_a_cpu_shows_in_a_measurement() -> None:
    """Beside a process on the same CPU, which has half of it."""
    code = """
    import os, subprocess, sys, time
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch
    torch.set_num_threads(1)
    from kernelwright.kernelbench.evaluator.timing.ceilings import _seconds
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        a = torch.rand(512, 512)
        print(_seconds(lambda: a @ a, 100)[1])
    finally:
        other.kill()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert float(done.stdout) > 0.2, done.stderr
