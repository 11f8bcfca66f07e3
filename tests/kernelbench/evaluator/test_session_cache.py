"""Sessions of tasks stay up while others are evaluated, as far as memory goes."""

import time
from typing import Any

import pytest

from kernelwright.kernelbench.evaluator import EAGER, Measurement, Referee
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.records import Task, Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant


class Session:
    """Stand-in for a session; `size`: bytes of memory that it takes."""

    def __init__(self, name: str, size: int) -> None:
        self.task = Task(id=name, level=1, source=name)
        self.vary_weights, self.alive, self.closed, self.size = True, True, False, size

    def memory_bytes(self) -> int:
        return self.size

    def close(self) -> None:
        self.closed = True


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
        assert session_cache.holds(task) and session.memory_bytes() > 1 << 20
        started = time.monotonic()
        assert sibling.sessions.open(task) is session
        assert time.monotonic() - started < fresh_s / 2
        assert sibling.evaluate(task, honest, EAGER).verdict is Verdict.correct
        sibling.sessions.release()
        session_cache.close()
        assert not session.alive
