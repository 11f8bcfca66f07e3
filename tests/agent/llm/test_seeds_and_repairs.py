"""Rounds with seeds, repairs and replies without a file; a real server, scripted evaluations."""

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, Reply
from kernelwright.agent.llm.model import EndpointUnusable
from kernelwright.agent.seeds import FileSeed, read_seed
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, OperatorCost, Task, Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt, TaskState
from tests.helpers.anywhere import TARGET
from tests.helpers.model_runs import KERNEL, ONE_CALL_USD, Better, Pool, carried_out, judged, says

SEED = Candidate(source=KERNEL.format("1.5"), language="cpp", author="builtin")
NO_SEED = Candidate(
    source='"""The reference unchanged: it branches on values."""\nclass ModelNew: ...\n',
    language="torch",
    author="builtin",
)


class SeededPool(Pool):
    """Has a seed of the builtin coder; what says "fault" does not build, what says "wrong" is wrong."""

    def __init__(self, seed: Candidate = SEED) -> None:
        super().__init__()
        self.seed = seed
        self.measurements: list[Measurement] = []

    def ask(self, task: Task, do: Any, client: str) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(self.seed)
        return found

    def evaluate(self, task: Task, candidate: Candidate, *measured: Any) -> Evaluation:
        self.measurements += measured
        for word, verdict in (("fault", Verdict.build_error), ("wrong", Verdict.wrong_output)):
            if f"speedup = '{word}" in candidate.source:
                reason = "error: " + re.findall("speedup = '(.+)'", candidate.source)[0]
                return self._found(task, candidate, verdict, reason)
        found = super().evaluate(task, candidate)
        cost = OperatorCost(signature="aten.softmax", calls=1, bytes=8, flops=0, seconds=1e-6)
        return found.model_copy(update={"operators": (cost,)})


Asked = list[dict[str, str]]


class Coder:
    """Says one reply after the other, and notes what it was asked; the judge what it should."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked, self.judged = list(replies), list[Asked](), list[Asked]()
        self._said: dict[str, str] = {}

    def __call__(self, body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        messages = body["messages"]
        if "`ModelNew`, which" not in messages[0]["content"]:
            self.judged.append(messages)
            return Reply(judged(messages[1]["content"]))
        self.asked.append(messages)
        return Reply(self.replies.pop(0)) if self.replies else ErrorResponse(401, "nothing is left to say")


def of(database: RunDatabase) -> list[RecordedAttempt]:
    return [attempt for attempt in database.attempts("file:0") if not attempt.confirms]


def told(database: RunDatabase) -> list[tuple[str, str]]:
    return [(a.candidate.origin, str(a.evaluation.verdict)) for a in of(database)]


def test_a_run_begins_with_the_builtin_coder_s_kernel_and_never_ends_below_it(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = coder = Coder(says(1.2), says(0.9), says(0.8))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=3, seed="builtin")
    assert told(database) == [("seed", "correct")] + [("round", "correct")] * 3
    *_, last = database.attempts("file:0")
    assert last.confirms and last.candidate.source == SEED.source
    assert [task.stop_reason for task in database.tasks()] == ["3 rounds"]
    beat, afresh, advised = (messages[1]["content"] for messages in coder.asked)
    assert SEED.source.strip() in beat and "Write a faster file" in beat and "# Advice" not in beat
    assert "speedup = 1.5" not in afresh and "from scratch" in afresh and "| 0 | builtin | correct" in afresh
    assert SEED.source.strip() in advised and "# Advice on the file of round 0" in advised
    assert len(coder.judged) == 1


def test_a_seed_is_confirmed_where_no_round_can_be_paid_for(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Better()
    assert carried_out(
        database, endpoint, 3, SeededPool(), rounds=9, seed="builtin", max_usd=ONE_CALL_USD / 2
    )
    tried = {task.task.id: database.attempts(task.task.id) for task in database.tasks()}
    assert all(attempts[-1].confirms for attempts in tried.values())
    seeds_alone = [name for name, attempts in tried.items() if len(attempts) == 2]
    assert len(seeds_alone) == 2 and len(endpoint.requests) == 1
    assert {task.stop_reason for task in database.tasks()} == {"$0.0003 are spent"}


def test_prompts_tell_eager_s_operators_and_what_torch_compile_takes(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, pool = Coder(says(2.0)), SeededPool()
    assert carried_out(database, endpoint, pool=pool, rounds=1, seed="builtin")
    seed, first, winner = pool.measurements
    assert (seed.baselines, seed.operators) == (("eager", "compile"), True)
    assert (first.baselines, first.operators) == (("eager",), False)
    assert winner.effort is None
    assert "aten.softmax" in endpoint.requests[0]["messages"][1]["content"]


def test_a_task_that_the_builtin_coder_cannot_do_has_no_seed_and_that_is_said(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, said = Coder(says(2.0)), list[str]()
    assert carried_out(database, endpoint, pool=SeededPool(NO_SEED), said=said, rounds=1, seed="builtin")
    assert said[0] == "file:0: no seed: it branches on values"
    assert told(database) == [("round", "correct")]


def test_a_seed_reaches_the_target_without_a_model(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = coder = Coder()
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=3, seed="builtin", target_speedup=1.4)
    assert coder.asked == [] and database.attempts("file:0")[-1].confirms


def test_a_budget_of_evaluations_that_the_seed_takes_ends_with_the_seed(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = coder = Coder()
    options = {"rounds": 3, "seed": "builtin", "max_evaluations_per_task": 2}
    assert carried_out(database, endpoint, pool=SeededPool(), **options)
    assert coder.asked == [] and [a.confirms for a in database.attempts("file:0")] == [False, True]


def test_a_task_that_the_money_did_not_reach_is_left_with_its_seed_for_later(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Coder()
    options = {"rounds": 1, "seed": "builtin"}
    with pytest.raises(EndpointUnusable):  # it refuses the first call
        carried_out(database, endpoint, pool=SeededPool(), **options)
    assert told(database) == [("seed", "correct")]
    endpoint.script, pool = Coder(says(2.0)), SeededPool()
    assert carried_out(database, endpoint, pool=pool, **options)
    assert told(database) == [("seed", "correct"), ("round", "correct")]
    assert len(pool.evaluated) == 2, "the seed is not evaluated again"


@pytest.mark.parametrize("search", ["refine", "agent"])
def test_a_task_whose_time_is_over_before_a_model_is_asked_ends_with_its_seed(
    search: str, endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    """As where the dollars are spent. The seed takes 0.3 s, and the run has 0.18."""
    endpoint.script = coder = Coder()
    pool = SeededPool()
    pool.seconds = 0.3
    options = {"rounds": 1, "seed": "builtin", "search": search, "max_minutes": 0.003}
    assert carried_out(database, endpoint, pool=pool, **options)
    assert coder.asked == [] and told(database) == [("seed", "correct")]
    assert [attempt.confirms for attempt in database.attempts("file:0")] == [False, True]
    [entry] = database.tasks()
    assert entry.state is TaskState.done and "minutes" in entry.stop_reason and not database.llm_calls()


@pytest.mark.parametrize("search", ["beam", "best-of-n", "evolve"])
def test_of_files_written_side_by_side_some_are_shown_the_seed(
    endpoint: FakeEndpoint, database: RunDatabase, search: str
) -> None:
    endpoint.script = coder = Coder(*(says(2 + number) for number in range(9)))
    options = {"search": search, "rounds": 4, "islands": 4, "beam_width": 4, "seed": "builtin"}
    assert carried_out(database, endpoint, pool=SeededPool(), **options)
    assert [a.candidate.origin for a in of(database)] == ["seed"] + ["round"] * 4
    shown = [SEED.source.strip() in messages[1]["content"] for messages in coder.asked]
    assert sorted(shown) == [False, False, True, True]


def test_what_does_not_build_is_repaired_in_its_conversation_without_a_judge_or_a_round(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = coder = Coder(says("fault_1"), says("fault_2"), says(1.1), says(1.3))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=2)
    kinds = [("round", "build_error"), ("repair", "build_error"), ("repair", "correct"), ("round", "correct")]
    assert told(database) == kinds
    assert len(coder.judged) == 1  # of the second round
    first, second, third, _ = coder.asked
    assert [m["role"] for m in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third[:4] == second and second[:2] == first
    assert "error: fault_1" in second[3]["content"] and "error: fault_2" in third[5]["content"]
    failed, repaired, mended, advised = (attempt.candidate for attempt in of(database))
    assert repaired.parents == (failed.sha256,) and mended.parents == (repaired.sha256,)
    assert advised.parents == (mended.sha256,)
    assert [task.stop_reason for task in database.tasks()] == ["2 rounds"]


def test_repairs_are_limited_and_what_still_fails_goes_to_the_judge(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = coder = Coder(says("fault_1"), says("fault_2"), says("fault_3"), says(1.3))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=2, repairs=2)
    assert [origin for origin, _ in told(database)] == ["round", "repair", "repair", "round"]
    [prompt] = coder.judged
    assert "# The file (round 2)" in prompt[1]["content"] and "fault_3" in prompt[1]["content"]


def test_a_wrong_output_goes_to_the_judge_and_no_repair_does_the_same_again(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    same = says("fault_1")
    endpoint.script = coder = Coder(says("wrong_1"), same, same, same, says(1.3))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=3)
    kinds = [
        ("round", "wrong_output"),
        ("round", "build_error"),
        ("repair", "build_error"),
        ("round", "correct"),
    ]
    assert told(database) == kinds
    assert len(coder.judged) == 2
    repair = of(database)[2]
    assert not repair.candidate.usable and "repeats the file" in repair.evaluation.reason


def test_a_reply_without_a_file_is_asked_for_again_as_if_it_had_not_been(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    prose = ["Sure! I would fuse everything.", "Let me know."]
    endpoint.script = coder = Coder(*prose, says(1.5), *prose, says(1.7))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=4)
    assert [a.candidate.usable for a in of(database)] == [False, True, False, True]
    first, again = coder.asked[0], coder.asked[2]
    assert again == first
    advised, again = coder.asked[3], coder.asked[5]
    assert again == advised and "# Advice on the file of round 1" in advised[1]["content"]
    assert len(coder.judged) == 1


def test_after_three_failures_in_a_row_another_approach_is_begun(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = coder = Coder(*(says(f"wrong_{n}") for n in range(1, 8)))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=7)
    afresh = ["from scratch" in messages[1]["content"] for messages in coder.asked]
    assert afresh == [False, False, False, True, False, False, True]
    assert "speedup = wrong" not in coder.asked[3][1]["content"]
    assert "| 2 | m | wrong_output: error: wrong_3" in coder.asked[3][1]["content"].replace("w |", "m |")


def test_a_coder_goes_on_without_a_judge(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = coder = Coder(says("wrong_1"), says(1.5), says(1.7))
    assert carried_out(database, endpoint, pool=SeededPool(), rounds=3, judge="none")
    assert [verdict for _, verdict in told(database)] == ["wrong_output", "correct", "correct"]
    assert coder.judged == [] and not any("# Advice" in messages[1]["content"] for messages in coder.asked)
    assert "error: wrong_1" in coder.asked[1][1]["content"]
    assert "speedup = 1.5" in coder.asked[2][1]["content"]


@pytest.mark.parametrize("search", ["refine", "beam", "evolve", "best-of-n"])
def test_wherever_a_run_is_ended_it_goes_on_as_it_would_have(
    endpoint: FakeEndpoint, tmp_path: Path, search: str
) -> None:
    """Replies depend on the request alone: some do not build, some are prose, some are right."""

    refused = set[int]()

    def script(allowed: int) -> Callable[[dict[str, Any], int], Reply | ErrorResponse]:
        said = 0

        def reply(body: dict[str, Any], number: int) -> Reply | ErrorResponse:
            nonlocal said
            if said == allowed:
                return ErrorResponse(401, "wrong key")
            said += 1
            messages = body["messages"]
            if "`ModelNew`, which" not in messages[0]["content"]:
                return Reply(judged(messages[1]["content"]))
            rows, number = messages[1]["content"].count("\n| "), len(json.dumps(messages))
            text = says(1 + number / 1e6)
            if "from scratch" in messages[1]["content"] and (search != "refine" or number not in refused):
                refused.add(number)
                text = f"no file {number}"
            elif (len(messages) == 2 and rows % 3 == 0) or (len(messages) == 4 and rows % 2 == 0):
                text = says(f"fault_{number}")
            return Reply(text)

        return reply

    options = {"search": search, "rounds": 4, "seed": "builtin", "islands": 2, "beam_width": 2, "at_once": 1}

    def ended(name: str, *limits: int) -> tuple[list[tuple[Candidate, Any, bool]], list[str]]:
        refused.clear()
        with RunDatabase.create(tmp_path / f"{name}.db", settings={}, target=TARGET) as database:
            for limit in limits:
                endpoint.script = script(limit)
                with suppress(EndpointUnusable):  # where several calls at once are refused
                    carried_out(database, endpoint, pool=SeededPool(), **options)
            attempts = [(a.candidate, a.advice, a.confirms) for a in database.attempts("file:0")]
            answered = [c.request_sha256 for c in database.llm_calls() if c.completion_tokens]
            return attempts, sorted(answered)

    whole, paid = ended("whole", 999)
    origins = {(made.origin, made.usable) for made, *_ in whole}
    assert {("seed", True), ("round", True), ("round", False), ("repair", True)} <= origins
    for limit in range(1, len(paid), 3):
        assert ended(f"ended-{limit}", limit, 999) == (whole, paid), limit


def test_a_seed_is_a_file_with_kernels(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for text, said in (
        (None, "No such file"),
        ("def f(:", "cannot be read"),
        ("def softmax(x): return x\ndef other(x): return x\n", "defines no class ModelNew"),
        ("def softmax(x): return x\n", "no kernels of its own"),
        ("class ModelNew: ...\n", "no kernels of its own"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_seed(file)
    with pytest.raises(UsageError, match=r"give builtin, none, or a \.py file"):
        read_seed(tmp_path / "bulitin")
    file.write_text(KERNEL.format(3.0))
    assert read_seed(file) == KERNEL.format(3.0)


def test_a_kernel_that_the_user_has_is_a_seed_in_its_own_language() -> None:
    seed = FileSeed(KERNEL.format(3.0))(Task(id="file:0", level=1, source=""))
    assert (seed.author, seed.language, seed.origin) == ("file", "cpp", "seed")
