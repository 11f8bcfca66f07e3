"""Many tasks at a time with a model over real HTTP; evaluations are scripted, so that these take no time."""

import os
import re
import signal
import threading
import time
from typing import Any

import pytest

from kernelwright.agent.display.status import RunStatus
from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, RawResponse, Reply
from kernelwright.agent.llm.model import EndpointUnusable
from kernelwright.kernelbench.records import (
    Candidate,
    Evaluation,
    Stages,
    Task,
    Verdict,
)
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskState
from tests.helpers.model_runs import KERNEL, ONE_CALL_USD, Better, Pool, Watched, carried_out, judged


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
            forged = KERNEL.format('"forged"')
            return Reply(f"```python\n{forged}# {next(numbers)}\n```")
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
    assert carried_out(database, endpoint, 1, pool, rounds=1, all_tasks=True)
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


def test_minutes_are_kept_for_the_winners_of_all_tasks_that_were_begun(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    """An evaluation says that it takes 100 s, so a winner is taken to need 300: four of them more than 1000."""

    class Slow(Pool):
        def evaluate(self, *arguments: Any) -> Evaluation:
            return super().evaluate(*arguments).model_copy(update={"stages": Stages(total_s=100.0)})

    endpoint.script, said = Better(), list[str]()
    limits = {"max_minutes": 1000 / 60, "max_usd": 100.0}
    assert not carried_out(database, endpoint, 6, Slow(), at_once=1, said=said, rounds=2, **limits)
    begun = [task for task in database.tasks() if task.state is TaskState.done]
    assert len(begun) == 4 and all(database.attempts(task.task.id)[-1].confirms for task in begun)
    over = "16.6667 minutes are over, or kept to confirm winners"
    assert begun[0].stop_reason == over and sum(f"not begun, {over}" in line for line in said) == 2


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


def test_an_endpoint_that_answers_no_more_ends_the_run_and_leaves_all_tasks_pending(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    better = Better()
    endpoint.script = lambda body, number: (
        better(body, number) if number < 4 else ErrorResponse(402, "Insufficient credits")
    )
    started = time.monotonic()
    with pytest.raises(EndpointUnusable, match="Insufficient credits"):
        carried_out(database, endpoint, tasks=30, at_once=4, rounds=3)
    assert time.monotonic() - started < 10 and len(endpoint.requests) <= 4 + 3 + 4
    assert {entry.state for entry in database.tasks()} == {TaskState.pending}
    assert not any("build_error" in verdicts(database, f"file:{n}") for n in range(30))
    endpoint.script = better
    assert carried_out(database, endpoint, rounds=3, at_once=8)
    assert all(verdicts(database, f"file:{n}") == ["correct"] * 4 for n in range(30))


def test_a_parameter_that_is_refused_costs_a_request_and_no_round(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    better, message = Better(), "Invalid max_tokens value, the valid range of max_tokens is [1, 80]"
    endpoint.script = lambda body, number: (
        ErrorResponse(400, message) if body["max_tokens"] > 80 else better(body, number)
    )
    said: list[str] = []
    assert carried_out(database, endpoint, tasks=3, at_once=1, said=said, rounds=3)
    assert all(verdicts(database, f"file:{n}") == ["correct"] * 4 for n in range(3))
    assert len(endpoint.requests) == 1 + 3 * 5


def test_an_endpoint_that_refuses_everything_ends_a_run_at_its_first_call(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(ErrorResponse(422, body={"detail": "this service is for members"}))
    with pytest.raises(EndpointUnusable, match="for members"):
        carried_out(database, endpoint, tasks=20, at_once=1, rounds=3)
    assert {entry.state for entry in database.tasks()} == {TaskState.pending}
    assert not database.attempts("file:0") and len(endpoint.requests) == 1


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
    assert verdicts(database) == ["runtime_error"] * 8  # two rounds, three repairs each


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
