"""Which device does which job: scripted devices, real threads."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EvaluationPool, pool
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.records import Task


class ScriptedDevice:
    """An evaluator of one device; a job on it is a call of what a test submits."""

    def __init__(self, name: str) -> None:
        self.sessions = self.pool = self
        self.name, self.device, self.at_once, self.timing_lock = name, name, None, TimingLock()
        self.held: set[str] = set()  # tasks
        self.broken: str | None = None
        self.closed = threading.Event()

    def sibling(self, _: Any) -> "ScriptedDevice":
        return self

    def holds(self, task: Task) -> bool:
        return task.id in self.held

    def computing(self) -> Any:
        return contextlib.nullcontext()

    def release(self) -> None:
        pass

    def fault(self) -> str | None:
        return self.broken

    def __enter__(self) -> "ScriptedDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()


class ScriptedDevices:
    def __init__(self, count: int) -> None:
        self.members = [ScriptedDevice(f"cuda:{number}") for number in range(count)]
        self.sessions, self.at_once, self.timing_lock = self.members[0], None, TimingLock()


A, B = (Task(id=name, level=1, source=f"# {name}") for name in "AB")


@pytest.fixture
def devices() -> ScriptedDevices:
    return ScriptedDevices(2)


@pytest.fixture
def made(devices: ScriptedDevices) -> Iterator[EvaluationPool]:
    with EvaluationPool(devices, slots=2) as made:  # type: ignore[arg-type]
        yield made


def name_of(evaluator: Any) -> str:
    return str(evaluator.device)


def busy_until(event: threading.Event, pool: EvaluationPool, task: Task) -> Future[str]:
    """Keep one device busy; return its name once it is over."""
    begun = threading.Event()

    def wait(evaluator: Any) -> str:
        begun.set()
        event.wait(30)
        return name_of(evaluator)

    future = pool.ask(task, wait)
    assert begun.wait(10)
    return future


def fails_on(*names: str) -> Any:
    def do(evaluator: Any) -> str:
        if evaluator.device in names:
            raise InfrastructureError(f"no memory on {evaluator.device}", "free some")
        return name_of(evaluator)

    return do


def test_two_jobs_are_done_by_two_devices_at_the_same_time(made: EvaluationPool) -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(evaluator: Any) -> str:
        both.wait()
        return name_of(evaluator)

    first, second = made.ask(A, meet), made.ask(A, meet)
    assert {first.result(10), second.result(10)} == {"cuda:0", "cuda:1"}


def test_a_job_goes_to_the_device_that_has_its_session(
    devices: ScriptedDevices, made: EvaluationPool
) -> None:
    devices.members[1].held.add("A")
    assert [made.ask(A, name_of).result(10) for _ in range(4)] == 4 * ["cuda:1"]


def test_it_waits_for_that_device_while_another_is_free(
    devices: ScriptedDevices, made: EvaluationPool
) -> None:
    devices.members[1].held.add("A")
    over = threading.Event()
    first = busy_until(over, made, A)
    second = made.ask(A, name_of)
    assert made.ask(B, name_of).result(10) == "cuda:0" and not second.done()
    over.set()
    assert (first.result(10), second.result(10)) == ("cuda:1", "cuda:1")


def test_but_not_for_ever(
    devices: ScriptedDevices, made: EvaluationPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_STAY_S", 0.2)
    devices.members[1].held.add("A")
    over = threading.Event()
    first = busy_until(over, made, A)
    assert made.ask(A, name_of).result(10) == "cuda:0" and not first.done()
    over.set()


def test_what_fails_on_one_device_is_done_by_another(made: EvaluationPool) -> None:
    for name, other in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        assert made.ask(A, fails_on(name)).result(10) == other
    with pytest.raises(InfrastructureError, match="no memory on"):
        made.ask(A, fails_on("cuda:0", "cuda:1")).result(10)
    assert all(device.fault is None for device in made._devices)


def test_a_device_on_which_two_jobs_failed_that_another_did_is_left_out(
    devices: ScriptedDevices, made: EvaluationPool, caplog: pytest.LogCaptureFixture
) -> None:
    devices.members[1].held |= {"A", "B"}  # so that it gets them first
    with caplog.at_level(logging.WARNING, "kernelwright"):
        assert made.ask(A, fails_on("cuda:1")).result(10) == "cuda:0"
        assert made.ask(A, name_of).result(10) == "cuda:1"  # which is one that it did
        assert [made.ask(task, fails_on("cuda:1")).result(10) for task in (A, B)] == 2 * ["cuda:0"]
        assert devices.members[1].closed.wait(10)
    assert made.ask(A, name_of).result(10) == "cuda:0"
    (line,) = caplog.messages
    assert line.startswith("cuda:1 is left out: 2 jobs in a row failed on it") and "cuda:0 goes on" in line


def test_a_device_that_does_not_work_any_more_is_left_out_at_once(
    devices: ScriptedDevices, made: EvaluationPool, caplog: pytest.LogCaptureFixture
) -> None:
    devices.members[1].held.add("A")
    devices.members[1].broken = "it has fallen off the bus"
    with caplog.at_level(logging.WARNING, "kernelwright"):
        assert made.ask(A, fails_on("cuda:1")).result(10) == "cuda:0"
        assert devices.members[1].closed.wait(10)
    assert caplog.messages == ["cuda:1 is left out: it has fallen off the bus; cuda:0 goes on"]
    devices.members[0].broken = "it has, too"
    for _ in range(2):  # the last one is asked again and again, and whoever asks is told
        with pytest.raises(InfrastructureError, match="cuda:0 does not work any more: it has, too"):
            made.ask(A, fails_on("cuda:0")).result(10)


def test_a_closed_pool_does_what_is_put_back(devices: ScriptedDevices) -> None:
    devices.members[1].held.add("A")
    over = threading.Event()

    def fails_later(evaluator: Any) -> str:
        over.wait(10)
        return str(fails_on("cuda:1")(evaluator))

    with EvaluationPool(devices, slots=2) as made:  # type: ignore[arg-type]
        future = made.ask(A, fails_later)
        threading.Timer(0.3, over.set).start()
    assert future.result(0) == "cuda:0"


def test_slots_are_as_many_on_every_device(devices: ScriptedDevices) -> None:
    for asked, slots in ((1, 2), (2, 2), (3, 4)):
        with EvaluationPool(devices, slots=asked) as made:  # type: ignore[arg-type]
            assert made.slots == slots
