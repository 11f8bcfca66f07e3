"""Many tasks at a time with a model over real HTTP; evaluations are scripted, so that these take no time."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.config import RunConfig
from kernelwright.agent.llm.fake_endpoint import ErrorResponse, FakeEndpoint, RawResponse, Reply
from kernelwright.agent.llm.model import Endpoint
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.progress import RunProgress
from kernelwright.agent.run import Run
from kernelwright.agent.status import RunStatus
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import (
    Candidate,
    Environment,
    Evaluation,
    Interval,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
    Work,
)
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import roofline
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskState
from tests.helpers.anywhere import TARGET

KERNEL = "from kernelwright import jit\nlib = jit.compile_cpp('')\nclass ModelNew:\n    speedup = {}\n"
ONE_CALL_USD = (100 * 2.0 + 50 * 8.0) / 1e6  # as the server counts, at the price of MODEL
MODEL = "gpt-4.1"


class Pool:
    """Believes what a candidate says of its speedup, after `seconds`; one without any has cheated."""

    def __init__(self, seconds: float = 0.0, eager_shares: Mapping[str, float] | None = None) -> None:
        self.target, self.seconds, self.timing_lock = TARGET, seconds, TimingLock()
        self.evaluated: list[str] = []
        self.eager_shares = eager_shares or {}

    waiting, running = 0, ["file:0"]

    def eager_share(self, task: Task) -> float | None:
        return self.eager_shares.get(task.id)

    def audit(self, task: Task) -> list[str]:
        return []

    def work(self, task: Task) -> Work:
        return Work(input_bytes=1 << 20, weight_bytes=0, output_bytes=1 << 20, flops=0)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, *_: object, **__: object
    ) -> Profile | None:
        return roofline(self.work(task), evaluation.target, evaluation)

    def evaluate(self, task: Task, candidate: Candidate, *_: object) -> Evaluation:
        time.sleep(self.seconds)
        self.evaluated.append(task.id)
        said = re.search(r"speedup = ([\d.]+)", candidate.source)
        if said is None:
            return self._found(task, candidate, Verdict.cheating, "its outputs are those of an earlier call")
        speedup = float(said.group(1))
        found = Interval(median=speedup, low=speedup * 0.99, high=speedup * 1.01)
        took = Interval(median=1e6 / speedup, low=0.99e6 / speedup, high=1.01e6 / speedup)
        timing = Timing(candidate_us=took, calls_per_block=1, rounds=1)
        return self._found(task, candidate, Verdict.correct, "", timing, Speedup(eager=found))

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return self._found(task, candidate, Verdict.build_error, reason)

    def ask(self, task: Task, do: Any, client: str) -> Future[Any]:
        raise AssertionError("the builtin coder is not asked")

    def abort(self) -> None:
        pass

    def _found(
        self, task: Task, candidate: Candidate, verdict: Verdict, reason: str,
        timing: Timing | None = None, speedup: Speedup | None = None,
    ) -> Evaluation:  # fmt: skip
        tried = verdict is not Verdict.build_error
        return Evaluation(
            task=task.id, candidate=candidate.sha256, target=TARGET, verdict=verdict, reason=reason,
            timing=timing, speedup=speedup, stages=Stages(total_s=1.0 if tried else 0.0),
            environment=Environment(sandbox=()),
        )  # fmt: skip


def says(speedup: float | str) -> str:
    return f"```python\n{KERNEL.format(speedup)}```"


def judged(prompt: str) -> str:
    found = re.search(r"^- bandwidth_share = (\S+)", prompt, re.MULTILINE)
    if found is None:
        return json.dumps({"critical_issue": "i", "why": "w", "minimal_fix": "f"})
    evidence = [{"metric": "bandwidth_share", "value": float(found.group(1))}]
    return json.dumps(
        {"bottleneck": "b", "technique": "vectorize", "method": "m", "plan": "p", "evidence": evidence,
         "predicted_gain": 1.5}
    )  # fmt: skip


class Better:
    """A model whose kernels of a task are faster and faster."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.written: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any], number: int) -> Reply | ErrorResponse | RawResponse:
        system, user = (message["content"] for message in body["messages"][:2])
        if "`ModelNew`, which" not in system:
            return Reply(judged(user), latency_s=self.latency_s)
        [task] = re.findall(r"^# The task: (\S+)$", user, re.MULTILINE)
        with self._lock:
            count = self.written[task] = self.written.get(task, 0) + 1
        return Reply(says(count), latency_s=self.latency_s)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RunDatabase]:
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as made:
        yield made


class Heard(RunProgress):
    """Keeps what is said."""

    def __init__(self, lines: list[str] | None) -> None:
        self.say = (lines if lines is not None else []).append  # type: ignore[method-assign]


class Watched(Heard):
    """Keeps what can be watched."""

    status: Callable[[], RunStatus]

    def watch(self, status: Callable[[], RunStatus]) -> None:
        self.status = status


def carried_out(
    database: RunDatabase,
    server: FakeEndpoint,
    tasks: int = 1,
    pool: Pool | None = None,
    at_once: int = 16,
    said: list[str] | None = None,
    progress: RunProgress | None = None,
    **options: Any,
) -> bool:
    for number in range(tasks):
        source = f"class Model:\n    def forward(self, x):\n        return torch.softmax(x, {number})\n"
        database.add_task(Task(id=f"file:{number}", level=1, source=source))
    pool = pool or Pool()
    asked = {
        "coder": "llm",
        "model": MODEL,
        "reply_tokens": 100,
        "language": ("cpp",),
        "tasks_at_once": at_once,
    }
    config = build(RunConfig, asked | options)
    roles = config.model.roles()
    assert roles is not None
    terms = config.terms(Endpoint(base_url=server.base_url, backoff_s=0.01, patience_s=20.0))
    with ModelSession.asking(roles, terms, database, pool.timing_lock) as models:
        return Run(config, database, pool, models, progress=progress or Heard(said)).execute()  # type: ignore[arg-type]


def test_a_run_can_be_watched(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    """Two tasks of three rounds: dollars, calls, tasks and the share of what is to be done."""
    watched, better, seen = Watched(None), Better(), list[RunStatus]()

    def script(body: dict[str, Any], number: int) -> Reply:
        seen.append(watched.status())
        return better(body, number)

    endpoint.script = script
    assert carried_out(database, endpoint, tasks=2, at_once=1, rounds=3, max_usd=1.0, progress=watched)
    first, last = seen[0], watched.status()
    assert (first.calls, first.asked, first.done, first.begun, first.share) == (0, 1, 0, 1, 0.0)
    assert first.now == "evaluating 0 · writing 0"
    assert any("advising on" in status.now for status in seen)
    assert last.calls == len(endpoint.requests) and (last.asked, last.done, last.begun) == (0, 2, 0)
    assert last.usd == pytest.approx(last.calls * ONE_CALL_USD) and last.share == 1.0
    shares = [status.share for status in seen]
    assert shares == sorted(shares) and 0.5 < shares[-1] < 1.0
    assert "2/2 tasks done" in last.line() and "of $1" in last.line()


def verdicts(database: RunDatabase, task: str = "file:0") -> list[str]:
    return [str(attempt.evaluation.verdict) for attempt in database.attempts(task)]


def test_tasks_wait_for_their_models_side_by_side(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = Better(latency_s=0.5)
    started = time.monotonic()
    assert carried_out(database, endpoint, tasks=8, rounds=3)
    took = time.monotonic() - started
    assert (
        len(endpoint.requests) == 8 * 5 and took < 8 * 5 * 0.5 / 2
    )  # of what one after the other takes at least
    assert endpoint.most_under_way >= 6
    assert all(verdicts(database, f"file:{n}") == ["correct"] * 4 for n in range(8))


def test_a_storm_of_refusals_and_broken_answers_delays_a_run_and_no_more(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    better, weather = Better(), 0

    def stormy(body: dict[str, Any], number: int) -> Reply | ErrorResponse | RawResponse:
        nonlocal weather
        weather += 1
        match weather % 7:
            case 0:
                return better(body, number)
            case 1:
                return ErrorResponse(500)
            case 2:
                return Reply("```python\nclass Mod", breaks_after=2)
            case _:
                return ErrorResponse(429, "slow down", headers={"retry-after-ms": "5"})

    endpoint.script = stormy
    assert carried_out(database, endpoint, tasks=3, at_once=1, rounds=2)
    assert all(verdicts(database, f"file:{n}") == ["correct"] * 3 for n in range(3))
    calls = database.llm_calls()
    assert len(calls) == 9 and len(endpoint.requests) == 7 * 9
    broken = [call for call in calls if call.completion_tokens > 50]
    assert len(broken) == 9, "the answers that broke off have been paid for, too"


def test_a_model_that_always_cheats_earns_nothing_and_all_of_it_is_kept(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    numbers = iter(range(100))

    def cheat(body: dict[str, Any], number: int) -> Reply:
        if "`ModelNew`, which" in body["messages"][0]["content"]:
            return Reply(f"```python\n{KERNEL.format('forged')}# {next(numbers)}\n```")
        return Reply(judged(body["messages"][1]["content"]))

    endpoint.script = cheat
    assert carried_out(database, endpoint, rounds=4)
    attempts = database.attempts("file:0")
    assert [str(a.evaluation.verdict) for a in attempts] == ["cheating"] * 4
    assert all(a.evaluation.speedup is None and "forged" in a.candidate.source for a in attempts)
    told = [body["messages"][1]["content"] for body in endpoint.requests[1:]]
    assert all("its outputs are those of an earlier call" in prompt for prompt in told)


def test_money_is_never_overshot_by_more_than_a_call_however_many_tasks_ask(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Better(latency_s=0.02)
    assert carried_out(database, endpoint, tasks=8, rounds=9, max_usd=20.5 * ONE_CALL_USD)
    spent = sum(call.usd or 0.0 for call in database.llm_calls())
    assert 19.5 * ONE_CALL_USD < spent < 21.5 * ONE_CALL_USD
    assert {entry.stop_reason for entry in database.tasks()} == {"$0.0123 are spent"}
    assert len(endpoint.requests) == len(database.llm_calls())


def test_every_task_gets_a_first_round_before_any_gets_a_second(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Better()
    assert carried_out(database, endpoint, tasks=6, at_once=1, rounds=9, max_usd=8.5 * ONE_CALL_USD)
    coders = [call.task for call in database.llm_calls() if call.role == "coder"]
    assert coders[:6] == [f"file:{n}" for n in range(6)] and len(coders) == 7
    assert all(verdicts(database, f"file:{n}")[-1] == "correct" for n in range(6))


def test_no_model_is_asked_about_a_task_that_eager_runs_near_the_roofline(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, pool = Better(), Pool(eager_shares={"file:0": 0.93, "file:1": 0.89})
    assert carried_out(database, endpoint, 3, pool, rounds=1)
    assert {call.task for call in database.llm_calls()} == {"file:1", "file:2"}
    skipped, *others = database.tasks()
    assert skipped.stop_reason == "eager already runs at 93% of what the roofline allows"
    assert skipped.state is TaskState.done and [task.stop_reason for task in others] == ["1 rounds"] * 2


def test_tasks_near_the_roofline_can_be_asked_about_all_the_same(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, pool = Better(), Pool(eager_shares={"file:0": 0.93})
    assert carried_out(database, endpoint, 1, pool, rounds=1, skip_near_roofline=False)
    assert [call.task for call in database.llm_calls()] == ["file:0"]


def test_evaluations_are_never_overshot_and_every_winner_is_measured_again(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, pool = Better(), Pool()
    said: list[str] = []
    assert not carried_out(database, endpoint, 9, pool, at_once=3, said=said, rounds=9, max_evaluations=14)
    left = [line for line in said if re.search("not begun|left for --resume", line)]
    assert left and all("14 evaluations are spent" in line for line in left)
    assert len(pool.evaluated) == sum(database.evaluations().values()) == 14
    begun = [task.task.id for task in database.tasks() if task.state is TaskState.done]
    assert len(begun) == 7 and all(database.attempts(task)[-1].confirms for task in begun)


def test_a_task_has_its_own_limit_of_evaluations(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = Better()
    assert carried_out(database, endpoint, 3, rounds=9, max_evaluations=14, max_evaluations_per_task=4)
    assert database.evaluations() == {"file:0": 4, "file:1": 4, "file:2": 4}
    assert all(database.attempts(f"file:{n}")[-1].confirms for n in range(3))


def test_a_task_s_minutes_are_those_it_was_worked_on(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = Better()
    # An evaluation says that it took a second, whatever it waited for.
    assert carried_out(database, endpoint, pool=Pool(0.0), rounds=9, max_minutes_per_task=2.5 / 60)
    [task] = database.tasks()
    assert task.stop_reason == "0.0416667 minutes are spent on this task"
    assert verdicts(database) == ["correct"] * 4


def test_an_endpoint_that_does_not_know_us_leaves_tasks_for_later_and_nothing_is_asked_twice(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    better = Better()
    endpoint.script = lambda body, number: (
        better(body, number) if number < 3 else ErrorResponse(401, "wrong key")
    )
    said: list[str] = []
    assert not carried_out(database, endpoint, rounds=3, said=said)
    assert any("left for --resume" in line and "wrong key" in line for line in said)
    before = [call.request_sha256 for call in database.llm_calls() if call.completion_tokens]
    endpoint.script = better
    assert carried_out(database, endpoint, rounds=3)
    assert verdicts(database) == ["correct"] * 4
    paid = [call.request_sha256 for call in database.llm_calls() if call.completion_tokens]
    assert len(paid) == len(set(paid)) == 5 and paid[: len(before)] == before


def test_an_interrupt_ends_all_tasks_at_once_and_nothing_is_lost(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Better(latency_s=0.3)

    def interrupt() -> None:
        while len(endpoint.requests) < 12:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        carried_out(database, endpoint, tasks=4, rounds=6)
    assert len(endpoint.requests) < 24  # of 44
    kept = {task.task.id: verdicts(database, task.task.id) for task in database.tasks()}
    assert all(0 < len(found) < 6 for found in kept.values())
    assert carried_out(database, endpoint, tasks=4, rounds=6)
    assert all(verdicts(database, task) == ["correct"] * 7 for task in kept)
    answered = [call.request_sha256 for call in database.llm_calls() if call.completion_tokens]
    assert len(answered) == len(set(answered)) == 4 * 11


def test_a_failure_without_a_word_ends_no_run(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    class Silent(Pool):
        def evaluate(self, task: Task, candidate: Candidate, *_: object) -> Evaluation:
            return self._found(task, candidate, Verdict.runtime_error, "")

    endpoint.script = Better()
    assert carried_out(database, endpoint, pool=Silent(), rounds=2)
    assert verdicts(database) == ["runtime_error"] * 2


def test_what_one_task_learns_others_are_told_unless_that_is_switched_off(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Better()
    assert carried_out(database, endpoint, tasks=2, at_once=1, rounds=3)
    prompts = [body["messages"][1]["content"] for body in endpoint.requests]
    first = [prompt for prompt in prompts if "file:0" in prompt]
    second = [prompt for prompt in prompts if "file:1" in prompt]
    lesson = "vectorize, softmax: 2 of 2 faster; time before / after 1.75 (1.50 to 2.00)"
    assert all(lesson in prompt for prompt in second) and not any("other kernels" in p for p in first)
    [_, told] = database.tasks()
    assert set(told.lessons.values()) == {(lesson,)}


def test_memory_can_be_switched_off(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = Better()
    assert carried_out(database, endpoint, tasks=2, at_once=1, rounds=3, memory=False)
    assert not any("vectorize, softmax" in body["messages"][1]["content"] for body in endpoint.requests)


def test_a_beam_s_files_are_written_side_by_side(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = Better(latency_s=0.2)
    assert carried_out(database, endpoint, search="beam", rounds=5)
    attempts = database.attempts("file:0")
    assert len(attempts) == 6 and attempts[-1].confirms and endpoint.most_under_way >= 3
    assert all(a.advice is None for a in attempts[:3])
    best = max(attempts[:3], key=lambda a: a.candidate.source)
    assert [a.advice.about if a.advice else "" for a in attempts[3:5]] == [best.candidate.sha256] * 2
    judged = [body["messages"][1]["content"] for body in endpoint.requests]
    assert any("Advice already given on this file" in prompt for prompt in judged)
