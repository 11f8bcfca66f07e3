"""Sessions of tasks stay up while others are evaluated, as far as memory goes."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import EAGER, Measurement, Referee
from kernelwright.kernelbench.evaluator.sandbox.process_tree import GONE_S
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.records import Task, Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant


class Session:
    """Stand-in for a session; `size`: bytes of memory that it takes, `on_device`: of a GPU of 20."""

    def __init__(self, name: str, size: int, on_device: int = 0) -> None:
        self.task = Task(id=name, level=1, source=name)
        self.vary_weights, self.alive, self.closed, self.size = True, True, False, size
        self.on_device, self.target = on_device, SimpleNamespace(fingerprint=SimpleNamespace(memory_bytes=20))
        self.waited_s, self.footprint = 0.0, self

    def host_bytes(self) -> int:
        return self.size

    def device_bytes(self) -> int:
        if self.on_device < 0:
            raise TaskError("the oracle's context is lost", "start another")
        return self.on_device

    def close(self, within_s: float = 0.0) -> None:
        self.closed, self.waited_s = True, within_s


def test_those_used_longest_ago_make_way() -> None:
    session_cache = SessionCache(10)
    a, b, c = (Session(name, 4) for name in "abc")
    huge: Any = Session("huge", 11)
    for session in (a, b, c):
        session_cache.put(session)  # type: ignore[arg-type]
    assert (a.closed, b.closed, c.closed) == (True, False, False)
    assert session_cache.take(b.task, True) is b and not session_cache.holds(b.task)  # type: ignore[comparison-overlap]
    assert session_cache.take(c.task, False) is None and session_cache.holds(c.task)
    session_cache.put(huge)
    assert huge.closed and not c.closed
    c.alive = False
    assert session_cache.take(c.task, True) is None and c.closed
    session_cache.put(b)  # type: ignore[arg-type]
    session_cache.close()
    assert b.closed


def test_they_make_way_for_what_a_trial_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = sessions = [Session(name, 4) for name in "abc"]
    session_cache = SessionCache(100)
    for session in sessions:
        session_cache.put(session)  # type: ignore[arg-type]
    free = lambda: 10 + sum(session.size for session in sessions if session.closed)  # noqa: E731
    monkeypatch.setattr("kernelwright.kernelbench.evaluator.session_cache.available_bytes", free)
    session_cache.evict(10)
    assert not a.closed
    session_cache.evict(15)
    assert (a.closed, b.closed, c.closed) == (True, True, False)
    session_cache.evict(1000)  # which is not there
    assert c.closed and not session_cache.holds(c.task)


def test_those_on_a_gpu_take_at_most_half_of_its_memory() -> None:
    session_cache = SessionCache(100)
    a, b, c = (Session(name, 4, on_device=4) for name in "abc")
    large, lost = Session("large", 4, on_device=11), Session("lost", 4, on_device=-1)
    for session in (a, b, c, lost):
        session_cache.put(session)  # type: ignore[arg-type]
    assert [each.closed for each in (a, b, c, lost)] == [True, False, False, True]
    session_cache.put(large)  # type: ignore[arg-type]
    assert b.closed and c.closed and not large.closed  # it alone, for the next candidate of its task


def test_they_are_evicted_one_by_one_while_a_gpu_s_memory_is_lacking() -> None:
    session_cache = SessionCache(100)
    a, b, c = sessions = [Session(name, 4, on_device=3) for name in "abc"]
    for session in sessions:
        session_cache.put(session)  # type: ignore[arg-type]
    session_cache.evict_on_device(lambda: 5 - sum(each.on_device for each in sessions if each.closed))
    assert [each.closed for each in sessions] == [True, True, False]
    assert a.waited_s == b.waited_s == GONE_S  # until a driver has freed it
    session_cache.evict_on_device(lambda: 1)
    assert c.closed and not session_cache.evict_oldest()


def test_a_trial_asks_for_what_its_workers_take(evaluator: Referee, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    session_cache = SessionCache(8 << 30)
    monkeypatch.setattr(session_cache, "evict", asked.append)
    with evaluator.sibling(session_cache) as sibling:
        honest = candidate_of(variant("Model", "Model"))
        sibling.evaluate(task_of(REFERENCE), honest, EAGER)
        sibling.evaluate(task_of(REFERENCE), honest, Measurement(("eager", "traffic")))
        session_cache.close()
    outputs = 512 * 1024 * 4
    assert 2 * outputs < asked[0] < asked[1]


def test_a_parked_session_s_oracle_and_baseline_go_on(evaluator: Referee) -> None:
    other = task_of(REFERENCE.replace("randn(512, 1024)", "randn(256, 1024)"))
    task, honest = task_of(REFERENCE), candidate_of(variant("Model", "Model"))
    session_cache = SessionCache(8 << 30)
    with evaluator.sibling(session_cache) as sibling:
        started = time.monotonic()
        session = sibling.sessions.open(task)
        session.eager()
        fresh_s = time.monotonic() - started
        sibling.sessions.open(other)
        assert session_cache.holds(task) and session.footprint.host_bytes() > 1 << 20
        started = time.monotonic()
        assert sibling.sessions.open(task) is session
        assert time.monotonic() - started < fresh_s / 2
        assert sibling.evaluate(task, honest, EAGER).verdict is Verdict.correct
        sibling.sessions.release()
        session_cache.close()
        assert not session.alive
