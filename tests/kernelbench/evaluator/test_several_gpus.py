"""Several GPUs as slots of one pool, and sessions parked on them, through the real evaluator.

The driver is the tests' own; see tests/helpers/gpu.
"""

import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator import EvaluationPool, Protocol, Referee, session_cache
from kernelwright.kernelbench.evaluator import trial as evaluation
from kernelwright.kernelbench.evaluator.processes import shared_memory
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.timing import clocks
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.kernelbench.without_gpu import start_evaluator
from tests.helpers.gpu.busy_tasks import BRIEF, candidate_of, task_of
from tests.helpers.gpu.evaluating import SMALL, evaluator_of, fake_gpu
from tests.helpers.gpu.fake_driver import UNAVAILABLE

pytestmark = pytest.mark.builds

PROTOCOL = Protocol(inputs_bytes=SMALL, outputs_bytes=SMALL)
TASKS = [task_of(us) for us in (20.0, 21.0, 22.0, 23.0)]


@pytest.fixture(autouse=True)
def with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a probe takes milliseconds, as if a kernel ran on the device."""
    monkeypatch.setattr(shared_memory, "_BUSY_S", 1.0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often a worker of each device and role was started."""
    counts: Counter[tuple[str, str]] = Counter()
    start = WorkerPool.start

    def counted(pool: WorkerPool, role: str, *arguments: Any, **options: Any) -> Any:
        counts[pool.device, role] += 1
        return start(pool, role, *arguments, **options)

    monkeypatch.setattr(WorkerPool, "start", counted)
    return counts


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, float]]:
    """Device, begin and end of what was timed."""
    spans: list[tuple[str, float, float]] = []
    measure = evaluation.measure

    def noted(session: Any, *arguments: Any) -> Any:
        begin = time.monotonic()
        try:
            return measure(session, *arguments)
        finally:
            spans.append((session.pool.device, begin, time.monotonic()))

    monkeypatch.setattr(evaluation, "measure", noted)
    return spans


def other_candidate(number: int) -> Candidate:
    return candidate_of(before=f"busy({10 + number % 3})  # {number}")


def evaluated(pool: EvaluationPool, tasks: list[Task], rounds: range) -> list[Evaluation]:
    """Evaluations of a candidate of each task in each round, as searches ask for them."""
    found = []
    for number in rounds:
        futures = [pool.submit(task, other_candidate(number), BRIEF, client=task.id) for task in tasks]
        found += [future.result(120) for future in futures]
    return found


@pytest.mark.slow
def test_two_devices_are_timed_at_the_same_time(
    tmp_path: Path, timed: list[tuple[str, float, float]], started: Counter[tuple[str, str]]
) -> None:
    with evaluator_of(2, tmp_path) as (evaluator, page), EvaluationPool(evaluator, slots=2) as pool:
        found = evaluated(pool, TASKS[:2], range(3))
    assert {each.verdict for each in found} == {Verdict.correct}, [each.reason for each in found]
    by_task = [{each.target.device for each in found if each.task == task.id} for task in TASKS[:2]]
    assert by_task[0] | by_task[1] == {"cuda:0", "cuda:1"}
    assert all(len(devices) == 1 for devices in by_task)  # each stays where its session is parked
    assert (started["cuda:0", "oracle"], started["cuda:1", "oracle"]) == (1, 1)
    assert page.devices[0].contexts and page.devices[1].contexts
    first, second = ([span for span in timed if span[0] == name] for name in ("cuda:0", "cuda:1"))
    assert any(a[1] < b[2] and b[1] < a[2] for a in first for b in second)


@pytest.mark.slow
def test_sessions_are_parked_on_a_gpu(tmp_path: Path, started: Counter[tuple[str, str]]) -> None:
    with evaluator_of(1, tmp_path) as (evaluator, _), EvaluationPool(evaluator, slots=1) as pool:
        found = evaluated(pool, TASKS[:2], range(2))
    assert {each.verdict for each in found} == {Verdict.correct}, [each.reason for each in found]
    assert started["cuda:0", "oracle"] == 2


@pytest.mark.slow
def test_they_make_way_for_those_that_need_their_memory(
    tmp_path: Path, started: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_cache, "_SHARE_OF_GPU", 10.0)  # so that each is parked at first
    small = evaluator_of(1, tmp_path, memory_bytes=13 << 28)  # by its budget for one, and a parked one's heap
    with small as (evaluator, page), EvaluationPool(evaluator, slots=1) as pool:
        found = [evaluated(pool, [task], range(1))[0] for task in TASKS[:3]]
        cache = pool._devices[0].cache
        assert [cache.holds(task) for task in TASKS[:3]] == [False, True, True]
        assert page.used_bytes < page.memory_bytes
    assert {each.verdict for each in found} == {Verdict.correct}, [each.reason for each in found]
    assert started["cuda:0", "oracle"] == 3


@pytest.mark.slow
def test_a_device_that_is_lost_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with evaluator_of(2, tmp_path) as (evaluator, page), EvaluationPool(evaluator, slots=2) as pool:
        before = evaluated(pool, TASKS[:2], range(1))
        with caplog.at_level(logging.WARNING, "kernelwright"):
            page.devices[1].lost = UNAVAILABLE
            after = evaluated(pool, TASKS[:2], range(1, 2))
    assert {each.verdict for each in before + after} == {Verdict.correct}
    assert {each.target.device for each in before} == {"cuda:0", "cuda:1"}
    assert {each.target.device for each in after} == {"cuda:0"}
    assert [line for line in caplog.messages if "cuda:1 is left out" in line and "cuda:0 goes on" in line]


@pytest.mark.slow
def test_what_a_candidate_s_device_dies_of_is_no_verdict(tmp_path: Path) -> None:
    with evaluator_of(1, tmp_path) as (evaluator, page), EvaluationPool(evaluator, slots=1) as pool:
        future = pool.submit(TASKS[0], candidate_of(before="busy(300_000)"), BRIEF)
        while not page.devices[0].contexts:
            time.sleep(0.01)
        threading.Timer(1.0, lambda: setattr(page.devices[0], "lost", UNAVAILABLE)).start()
        with pytest.raises(InfrastructureError, match="cuda:0 does not work any more"):
            future.result(120)


@pytest.mark.slow
def test_devices_of_two_kinds_are_refused_in_one_line(tmp_path: Path) -> None:
    with fake_gpu(tmp_path, devices=2) as page:
        page.devices[1].unlike = 1
        with pytest.raises(
            UsageError, match=r"cuda:0 is NVIDIA H100 80GB HBM3 \(sm_90\), cuda:1 Another GPU"
        ) as refused:
            start_evaluator(cache=tmp_path / "cache", devices=("cuda:0", "cuda:1"))
    assert "\n" not in str(refused.value) and "one kind" in refused.value.fix


@pytest.mark.slow
def test_a_gpu_that_is_not_there_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            return 2

    monkeypatch.setattr(clocks, "nvml", Library)
    with (
        fake_gpu(tmp_path, devices=2),
        pytest.raises(MissingPrerequisite, match="this machine has 2 GPUs — use --target cuda:0 to cuda:1"),
    ):
        start_evaluator(cache=tmp_path / "cache", devices=("cuda:0", "cuda:5"))


@pytest.mark.slow
def test_cuda_visible_devices_is_what_devices_are_counted_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_gpu(tmp_path, devices=4) as page:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
        with Referee.start(
            cache=tmp_path / "cache", device="cuda:1", threads=1, protocol=PROTOCOL
        ) as referee:
            found = referee.evaluate(TASKS[0], candidate_of(), BRIEF)
        assert found.verdict is Verdict.correct and found.target.device == "cuda:1", found.reason
        assert [device.contexts > 0 for device in page.devices[:4]] == [False, False, True, False]
