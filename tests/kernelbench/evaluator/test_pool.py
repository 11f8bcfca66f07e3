"""Many evaluations at a time: turns, repetitions, errors; and real ones, of which one times at a time."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed
from typing import Any

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EAGER, EvaluationPool, Referee, job_queue, pool
from kernelwright.kernelbench.evaluator import trial as evaluation
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant


class Scripted:
    """An evaluator whose evaluations are noted and take until they may go on."""

    def __init__(self) -> None:
        self.sessions = self.pool = self
        self.members = (self,)
        self.timing_lock, self.device, self.name, self.at_once = TimingLock(), "cpu", "cpu", None
        self.at_hand: Task | None = None
        self.asked: list[tuple[str, str]] = []
        self.go_on = threading.Event()

    def sibling(self, session_cache: Any) -> "Scripted":
        return self

    def holds(self, task: Task) -> bool:
        return task == self.at_hand

    def computing(self) -> Any:
        return self.timing_lock.shared()

    def release(self) -> None:
        pass

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def evaluate(self, task: Task, candidate: Candidate, measurement: Any) -> Any:
        self.asked.append((task.id, candidate.source))
        self.go_on.wait(30)
        if "fails" in candidate.source:
            raise OSError("the machine is full")
        return f"{task.id} {candidate.source}"

    def is_under_way(self) -> None:
        while not self.asked:
            time.sleep(0.001)


def candidate(source: str) -> Candidate:
    return Candidate(source=source, language="torch", author="test")


A, B = (Task(id=name, level=1, source=f"# {name}") for name in "AB")
Made = tuple[Scripted, EvaluationPool]


@pytest.fixture
def made() -> Iterator[Made]:
    evaluator = Scripted()
    with EvaluationPool(evaluator, slots=1) as made:  # type: ignore[arg-type]
        yield evaluator, made


def test_clients_take_turns_however_much_one_of_them_asks(made: Made) -> None:
    evaluator, pool = made
    pool.submit(A, candidate("first"), client="x")
    evaluator.is_under_way()
    for number in range(5):
        pool.submit(A, candidate(f"x{number}"), client="x")
    last = [pool.submit(A, candidate(f"y{number}"), client="y") for number in range(2)][-1]
    evaluator.go_on.set()
    last.result(30)
    assert [source for _, source in evaluator.asked][:5] == ["first", "x0", "y0", "x1", "y1"]


def test_jobs_of_the_task_at_hand_come_first_but_not_for_ever(made: Made) -> None:
    evaluator, running = made
    evaluator.at_hand = A
    running.submit(A, candidate("first"), client="a")
    evaluator.is_under_way()
    waiting = running.submit(B, candidate("b"), client="b")
    for number in range(3 * job_queue._PATIENCE):
        running.submit(A, candidate(f"a{number}"), client="a")
    evaluator.go_on.set()
    waiting.result(30)
    assert evaluator.asked.index(("B", "b")) == 1 + job_queue._PATIENCE


def test_the_same_question_is_evaluated_once(made: Made) -> None:
    evaluator, pool = made
    evaluator.go_on.set()
    answers = [pool.submit(A, candidate("x"), client=client) for client in ("one", "two")]
    assert [answer.result(30) for answer in answers] == ["A x", "A x"]
    assert pool.submit(A, candidate("x")).result(30) == "A x"
    assert len(evaluator.asked) == 1
    assert pool.submit(A, candidate("x"), EAGER).result(30) == "A x"
    assert pool.submit(B, candidate("x")).result(30) == "B x"
    assert len(evaluator.asked) == 3


def test_who_gives_up_takes_nothing_from_who_asked_the_same(made: Made) -> None:
    evaluator, pool = made
    pool.submit(A, candidate("first"))
    evaluator.is_under_way()
    one, two = pool.submit(A, candidate("x")), pool.submit(A, candidate("x"))
    assert one.cancel()
    evaluator.go_on.set()
    assert two.result(30) == "A x"


def test_what_everybody_gave_up_is_not_evaluated_but_may_be_asked_again(made: Made) -> None:
    evaluator, pool = made
    pool.submit(A, candidate("first"))
    evaluator.is_under_way()
    one, two = pool.submit(A, candidate("x")), pool.submit(A, candidate("x"))
    last = pool.submit(A, candidate("last"))
    assert one.cancel() and two.cancel()
    evaluator.go_on.set()
    last.result(30)
    assert [source for _, source in evaluator.asked] == ["first", "last"]
    assert pool.submit(A, candidate("x")).result(30) == "A x"


def test_what_is_remembered_is_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, running = made
    evaluator.go_on.set()
    monkeypatch.setattr(pool, "_REMEMBERED", 3)
    for number in range(8):
        running.submit(A, candidate(str(number))).result(30)
    assert len(running._known) <= 4


def test_an_error_reaches_who_asked_and_may_be_asked_again(made: Made) -> None:
    evaluator, pool = made
    evaluator.go_on.set()
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            pool.submit(A, candidate("fails")).result(30)
    assert pool.submit(A, candidate("goes on")).result(30)
    assert len(evaluator.asked) == 3


def test_parked_sessions_take_no_more_memory_than_is_given() -> None:
    with (
        EvaluationPool(Scripted(), slots=1) as usual,  # type: ignore[arg-type]
        EvaluationPool(Scripted(), slots=1, parked_bytes=0) as alone,  # type: ignore[arg-type]
    ):
        assert usual._devices[0].cache.has_room and not alone._devices[0].cache.has_room


def test_closing_with_discard_cancels_what_waits_only() -> None:
    evaluator = Scripted()
    pool = EvaluationPool(evaluator, slots=1)  # type: ignore[arg-type]
    running, waiting = pool.submit(A, candidate("x")), pool.submit(A, candidate("y"))
    evaluator.is_under_way()
    heard = threading.Event()
    waiting.add_done_callback(lambda _: heard.set())
    threading.Timer(0.1, evaluator.go_on.set).start()
    pool.close(discard=True)
    assert running.result(0) == "A x" and waiting.cancelled() and heard.is_set()
    assert as_completed([waiting], timeout=1).__next__() is waiting
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(A, candidate("z"))


def test_what_an_abort_has_spoiled_is_no_result(made: Made) -> None:
    """The worker of a build that is killed says of the candidate that it does not build."""
    evaluator, pool = made
    evaluator.abort = evaluator.go_on.set  # type: ignore[attr-defined]
    under_way, waiting = pool.submit(A, candidate("x")), pool.submit(A, candidate("y"))
    evaluator.is_under_way()
    pool.abort()
    with pytest.raises(InfrastructureError, match="ended while it was under way"):
        under_way.result(10)
    with pytest.raises(CancelledError):
        waiting.result(10)


def test_who_leaves_a_pool_early_does_not_wait_for_what_is_under_way() -> None:
    """As by Ctrl-C, while an evaluation is waited for."""
    evaluator = Scripted()
    evaluator.abort = evaluator.go_on.set  # type: ignore[attr-defined]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), EvaluationPool(evaluator, slots=1) as pool:  # type: ignore[arg-type]
        under_way = pool.submit(A, candidate("x"))
        evaluator.is_under_way()
        raise KeyboardInterrupt
    assert time.monotonic() - began < 20
    with pytest.raises(InfrastructureError):
        under_way.result(0)


RETURN = "return torch.nn.functional.gelu(self.norm(x))"
# A few seconds of compiling.
SLOW_BUILD = """
from kernelwright import jit
jit.compile_cpp(r'''
constexpr unsigned step(unsigned seed) {
    unsigned x = seed;
    for (int i = 0; i < 500; ++i)
        for (int j = 0; j < 1000; ++j) x = x * 1664525u + 1013904223u;
    return x;
}
extern "C" void f(int* sum) { constexpr unsigned table = step(VALUE); *sum = table; }
''')
"""


@pytest.mark.slow
def test_several_at_a_time_get_the_verdicts_they_get_alone(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[tuple[float, float]] = []
    measure = evaluation.measure

    def noted(*arguments: Any) -> Any:
        started = time.monotonic()
        try:
            return measure(*arguments)
        finally:
            timed.append((started, time.monotonic()))

    monkeypatch.setattr(evaluation, "measure", noted)
    honest = variant("Model", "Model")
    candidates = {
        honest: Verdict.correct,
        "x =": Verdict.build_error,
        variant(RETURN, "return x"): Verdict.wrong_output,
        SLOW_BUILD.replace("VALUE", "1") + honest: Verdict.correct,
        variant(RETURN, "while True: pass"): Verdict.timeout,
        variant(RETURN, "import os; os.kill(os.getpid(), 9)"): Verdict.runtime_error,
    }
    other = REFERENCE.replace("randn(512, 1024)", "randn(256, 1024)")
    limits = evaluator.sessions.limits.model_copy(update={"build_s": 20.0})
    with (
        Referee.start(
            cache=evaluator.sessions.pool.cache, protocol=evaluator.sessions.protocol, limits=limits
        ) as first,
        EvaluationPool(first, slots=2) as made,
    ):
        asked = [
            (made.submit(task_of(reference), candidate_of(source), EAGER, client=reference), verdict)
            for source, verdict in candidates.items()
            for reference in ((REFERENCE, other) if verdict is Verdict.correct else (REFERENCE,))
        ]
        for found, verdict in asked:
            assert found.result(120).verdict is verdict, found.result().reason
    timed.sort()
    assert len(timed) == 4
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(timed))
