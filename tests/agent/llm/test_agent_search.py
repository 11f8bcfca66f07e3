"""The agent search over real HTTP: a model that calls tools is scripted, evaluations take no time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, Reply
from kernelwright.agent.llm.model import ModelCall
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.report.rounds import calls_by_round
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, TaskState
from tests.helpers.conversing import TASK, Pool, execute, file, opened
from tests.helpers.model_runs import Heard

ONE_CALL_USD = (100 * 2.0 + 50 * 8.0) / 1e6  # as the server counts, at the price of the model

Calls = tuple[tuple[str, dict[str, Any] | str], ...]


def calling(*calls: tuple[str, dict[str, Any] | str]) -> Reply:
    return Reply("", calls=calls)


CHECK_WRONG = calling(("check", {"file": file("row 3 is wrong"), "idea": "one pass"}))
FIX = calling(
    ("check", {"base": 0, "edits": [{"search": "wrong = 'row 3 is wrong'", "replace": "speedup = 1.5"}]})
)
CONVERSATION = (
    calling(("compile_reference", {}), ("read_notes", {"topic": "guide"})),
    CHECK_WRONG,
    FIX,
    calling(("measure", {"base": 1})),
    calling(("profile", {"number": 2})),
    calling(("measure", {"file": file(2.5), "idea": "online softmax"}), ("read_notes", {"topic": "tried"})),
    calling(("submit", {"base": 3})),
)


def told(body: dict[str, Any], last: int = 1) -> list[str]:
    """Return the last answers of the tools, as a request gives them to the model."""
    return [message["content"] for message in body["messages"][-last:]]


def place(call: LlmCall) -> int:
    return ModelCall.model_validate(call.request).sample


def verdicts(database: RunDatabase) -> list[str]:
    return [str(attempt.evaluation.verdict) for attempt in database.attempts(TASK.id)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RunDatabase]:
    with opened(tmp_path) as made:
        yield made


def test_a_model_checks_mends_measures_profiles_and_submits(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(*CONVERSATION)
    pool = Pool()
    assert execute(database, endpoint.base_url, pool, max_usd_per_task=2, max_evaluations_per_task=9)
    assert len(endpoint.requests) == 7
    first, *_, last = endpoint.requests
    tools = {tool["function"]["name"] for tool in first["tools"]}
    assert tools == {"check", "measure", "profile", "compile_reference", "read_notes", "submit"}
    assert told(endpoint.requests[1], 2)[0] == "the kernels of the compiler"
    assert "# C++ on a CPU" in told(endpoint.requests[1], 2)[1]
    assert "File 0. Result: wrong_output." in told(endpoint.requests[2])[0]
    assert "row 3 is wrong" in told(endpoint.requests[2])[0]
    assert "File 1. It is right" in told(endpoint.requests[3])[0]
    assert "1.5 (1.485 to 1.515) times as fast as eager" in told(endpoint.requests[4])[0]
    assert "- memory_floor = " in told(endpoint.requests[5])[0]
    measured, table = told(last, 2)
    assert "File 3." in measured and "| 3 | online softmax | correct |" in table
    assert (
        "Budget: $0.00 of $2.00 spent; 4 of 9 evaluations, 7 of 9 timed files and 34 of 40 answers left."
        in table
    )
    # As the protocol has it: each call is answered under its id.
    roles = [(m["role"], m.get("tool_call_id"), len(m.get("tool_calls", ()))) for m in last["messages"][2:6]]
    assert roles == [
        ("assistant", None, 2),
        ("tool", "call-0", 0),
        ("tool", "call-1", 0),
        ("assistant", None, 1),
    ]

    attempts = database.attempts(TASK.id)
    assert verdicts(database) == ["wrong_output", "unmeasured", "correct", "correct", "correct"]
    assert [a.evaluation.only_checked for a in attempts] == [False, True, False, False, False]
    assert attempts[1].candidate.parents == (attempts[0].candidate.sha256,)
    assert attempts[0].candidate.idea == "one pass" and attempts[0].candidate.author == "llm:gpt-4.1"
    assert attempts[-1].confirms and "speedup = 2.5" in attempts[-1].candidate.source
    [entry] = database.tasks()
    assert entry.state is TaskState.done and entry.stop_reason == "the model submitted file 3"
    assert pool.evaluated[-1] == "confirm speedup = 2.5"
    by_round = calls_by_round(attempts, database.llm_calls())
    places = {number: [place(call) for call in calls] for number, calls in by_round.items()}
    assert places == {None: [0, 3, 4, 6], 0: [1], 1: [2], 3: [5]}


def test_the_fastest_file_wins_whichever_is_submitted(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.say(calling(("measure", {"file": file(3.0)})), calling(("submit", {"file": file(1.2)})))
    assert execute(database, endpoint.base_url, Pool())
    assert "speedup = 3.0" in database.attempts(TASK.id)[-1].candidate.source


def test_a_seed_is_file_0_costs_no_round_and_wins_against_slower_files(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(calling(("measure", {"file": file(1.2)}), ("profile", {"number": 0})))
    assert execute(database, endpoint.base_url, Pool(), rounds=1, seed=file(1.7))
    [body] = endpoint.requests
    assert "# The best file so far (file 0)" in body["messages"][1]["content"]
    assert "1 of 1 timed files" in body["messages"][1]["content"]
    attempts = database.attempts(TASK.id)
    assert [a.candidate.origin for a in attempts] == ["seed", "round", "seed"]
    assert attempts[-1].confirms and database.tasks()[0].stop_reason == "1 rounds"


def test_a_wrong_file_is_not_submitted(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.say(
        calling(("submit", {})),
        calling(("submit", {"file": file("nan")})),
        calling(("submit", {"file": file(2.0)})),
    )
    assert execute(database, endpoint.base_url, Pool())
    assert told(endpoint.requests[1])[0].startswith("Not done: no measured file is right yet")
    assert told(endpoint.requests[2])[0].startswith("Not submitted. File 0. Result: wrong_output.")
    assert verdicts(database) == ["wrong_output", "correct", "correct"]


def test_files_of_one_answer_are_evaluated_side_by_side_and_numbered_in_its_order(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    files = [file(1.3 - number / 10) for number in range(4)]
    endpoint.say(
        calling(*(("measure", {"file": each}) for each in files), ("check", {"file": files[0]})),
        calling(("submit", {})),
    )
    pool = Pool(seconds=0.3)
    assert execute(database, endpoint.base_url, pool)
    assert pool.most_under_way >= 4
    assert [a.candidate.source for a in database.attempts(TASK.id)[:4]] == files
    answers = told(endpoint.requests[1], 5)
    assert [answer.partition(".")[0] for answer in answers] == [
        "File 0",
        "File 1",
        "File 2",
        "File 3",
        "File 0",
    ]
    assert "The best so far is file 0, 1.3 times as fast as eager." in answers[3]


BAD = {
    "no such tool": (("bash", {"command": "ls"}), "there is no tool 'bash': the tools are check, measure"),
    "no JSON": (("check", '{"file": "import'), "not valid JSON"),
    "no object": (("check", "[1]"), "invalid arguments of check"),
    "no such argument": (("profile", {"number": 0, "deep": True}), "deep: Extra inputs are not permitted"),
    "no number": (("profile", {}), "number: Field required"),
    "no such file": (("profile", {"number": 7}), "there is no file 7: no file has been given yet"),
    "no such base": (("check", {"base": 2}), "there is no file 2"),
    "no file": (("measure", {}), "no file: give `file`, or `base` with `edits`"),
    "two files": (("measure", {"file": "x", "base": 0}), "not both"),
    "edits of nothing": (("check", {"edits": [{"search": "a", "replace": "b"}]}), "need the number of a file"),
    "no ModelNew": (("check", {"file": "import torch\n"}), "ModelNew"),
    "no kernel": (("check", {"file": "class ModelNew:\n    pass\n"}), "no kernels of its own"),
    "no such topic": (("read_notes", {"topic": "secrets"}), "topic: Input should be 'rules'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_call_that_cannot_be_carried_out_costs_nothing_and_says_why(
    case: str, endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    call, said = BAD[case]
    endpoint.say(calling(call), calling(("submit", {"file": file(2.0)})))
    pool = Pool()
    assert execute(database, endpoint.base_url, pool)
    [answer] = told(endpoint.requests[1])
    assert answer.startswith("Not done: ") and said in answer
    assert pool.evaluated == ["measure speedup = 2.0", "confirm speedup = 2.0"]
    sent_back = endpoint.requests[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent_back), dict), "servers parse what they are sent back"


def test_an_edit_must_say_where(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    def edit(search: str) -> Calls:
        return (("check", {"base": 0, "edits": [{"search": search, "replace": "x"}]}),)

    endpoint.say(
        calling(("measure", {"file": file(2.0)})),
        calling(*edit("jit"), *edit("absent")),
        calling(("submit", {})),
    )
    assert execute(database, endpoint.base_url, Pool())
    twice, never = told(endpoint.requests[2], 2)
    assert "its search text occurs 2 times in file 0" in twice and "occurs 0 times in file 0" in never


def test_a_file_that_was_evaluated_is_answered_from_the_record(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(
        calling(("measure", {"file": file(2.0)})),
        calling(("check", {"file": file(2.0)}), ("measure", {"base": 0})),
        calling(("submit", {"base": 0})),
    )
    pool = Pool()
    assert execute(database, endpoint.base_url, pool)
    assert pool.evaluated == ["measure speedup = 2.0", "confirm speedup = 2.0"]
    assert all(answer.startswith("File 0.") for answer in told(endpoint.requests[2], 2))


def test_answers_without_a_call_are_asked_for_one_and_three_in_a_row_end_the_task(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say("Let me think.", calling(("measure", {"file": file(2.0)})), "Done!", "Really.", "Bye.")
    assert execute(database, endpoint.base_url, Pool())
    assert len(endpoint.requests) == 5
    assert told(endpoint.requests[1])[0].startswith("That called no tool.")
    [entry] = database.tasks()
    assert entry.stop_reason == "3 answers in a row called no tool"
    assert verdicts(database) == ["correct", "correct"]


def test_calls_that_cannot_be_carried_out_end_the_task_in_the_end(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    """Also where the run goes on in the middle of them."""
    fruitless, looking = calling(("submit", {})), calling(("read_notes", {"topic": "rules"}))
    answers = [*[fruitless] * 5, looking, *[fruitless] * 4, ErrorResponse(402, "no credit"), *[fruitless] * 9]
    endpoint.say(*answers)
    assert not execute(database, endpoint.base_url, Pool())
    assert execute(database, endpoint.base_url, Pool())
    assert database.tasks()[0].stop_reason == "no call of 8 answers in a row could be carried out"
    assert len(endpoint.requests) == 6 + 4 + 1 + 4


def test_a_model_that_never_calls_a_tool_is_said_to_have_none(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(f"```python\n{file(2.0)}```")
    assert execute(database, endpoint.base_url, Pool())
    assert database.tasks()[0].stop_reason == (
        "3 answers in a row called no tool; if the model has no tools, use --search refine"
    )


@pytest.mark.parametrize(
    "words",
    [
        "registry.ollama.ai/library/old does not support tools",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    ],
)
def test_an_endpoint_without_tools_ends_the_run_in_one_line_with_what_to_use(
    words: str, endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(ErrorResponse(400, words))
    with pytest.raises(UsageError) as error:
        execute(database, endpoint.base_url, Pool())
    assert words in str(error.value) and "give --search refine" in str(error.value)
    assert len(str(error.value).splitlines()) == 1 and len(endpoint.requests) == 1
    assert database.tasks()[0].state is TaskState.pending


def test_evaluations_that_are_used_up_in_the_middle_end_the_task_with_its_winner(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(
        calling(("measure", {"file": file(2.0)})),
        calling(("check", {"file": file(3.0)}), ("check", {"file": file(4.0)})),
    )
    pool = Pool()
    assert execute(database, endpoint.base_url, pool, max_evaluations_per_task=3)
    assert len(endpoint.requests) == 2, "no answer is paid for that could do nothing"
    assert pool.evaluated == ["measure speedup = 2.0", "check speedup = 3.0", "confirm speedup = 2.0"]
    assert database.tasks()[0].stop_reason == "3 evaluations are spent on this task, or kept for its winner"


def test_dollars_that_are_used_up_in_the_middle_end_the_task_with_its_winner(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    numbers = iter(range(1, 99))
    endpoint.script = lambda body, number: calling(("measure", {"file": file(1 + next(numbers) / 10)}))
    assert execute(database, endpoint.base_url, Pool(), max_usd_per_task=3.5 * ONE_CALL_USD)
    assert len(endpoint.requests) == 4
    assert verdicts(database) == ["correct"] * 5
    assert database.tasks()[0].stop_reason == "$0.0021 are spent on this task"
    assert "Budget: $0.00 of $0.00 spent;" in told(endpoint.requests[1])[0]


def test_a_task_that_was_paid_for_is_not_said_not_to_have_begun(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(calling(("submit", {})))
    for limit in ("0.0012", "0.0012"):
        heard = Heard(None)
        assert not execute(database, endpoint.base_url, Pool(), progress=heard, max_usd=limit)
        assert heard.lines == [f"{TASK.id}: left for --resume: $0.0012 are spent"]
    assert len(endpoint.requests) == 2


def test_rounds_are_the_files_that_are_timed_and_turns_all_answers(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    numbers = iter(range(1, 99))

    def checked_and_measured(body: dict[str, Any], number: int) -> Reply:
        made = file(1 + next(numbers) / 10)
        return calling(("check", {"file": made}), ("measure", {"file": made}))

    endpoint.script = checked_and_measured
    assert execute(database, endpoint.base_url, Pool(), rounds=2)
    assert verdicts(database) == ["unmeasured", "correct"] * 2 + ["correct"]
    assert database.tasks()[0].stop_reason == "2 rounds"


def test_a_model_that_only_looks_around_is_ended_by_its_turns(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.say(calling(("read_notes", {"topic": "rules"})))
    assert execute(database, endpoint.base_url, Pool(), turns=5)
    assert len(endpoint.requests) == 5 and database.tasks()[0].stop_reason == "5 answers"


def test_a_killed_run_goes_on_where_it_was_and_asks_and_measures_nothing_twice(
    endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    """Killed three times: while the model answers, while a file is evaluated, and between the two."""
    script = [*CONVERSATION[:5], Reply("", calls=CONVERSATION[5].calls, latency_s=1.0), CONVERSATION[6]]

    def answer(body: dict[str, Any], number: int) -> Reply:
        """Answer by the place in the conversation, as a model would: a repeated question has the same answer."""
        return script[sum(message["role"] == "assistant" for message in body["messages"])]

    endpoint.script = answer
    log = tmp_path / "evaluated"

    def run_until(requests: int, evaluated: int, wait_s: float) -> None:
        words = [sys.executable, "-m", "tests.helpers.conversing", str(tmp_path), endpoint.base_url]
        process = subprocess.Popen(words, env=os.environ, cwd=Path(__file__).parents[3])
        while len(endpoint.requests) < requests or (log.exists() and log.read_text().count("\n")) < evaluated:
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(wait_s)
        process.send_signal(signal.SIGKILL)
        process.wait()

    run_until(requests=3, evaluated=1, wait_s=0.1)  # the third answer's file is being evaluated
    run_until(requests=4, evaluated=2, wait_s=0.3)
    before = len(endpoint.requests)
    run_until(requests=before + 1, evaluated=3, wait_s=0.1)
    with opened(tmp_path) as database:
        assert execute(database, endpoint.base_url, Pool(log=log))
        asked = [place(call) for call in database.llm_calls()]
        answered = [
            call.request_sha256 for call in database.llm_calls() if "error" not in json.dumps(call.response)
        ]
        assert verdicts(database) == ["wrong_output", "unmeasured", "correct", "correct", "correct"]
        assert database.tasks()[0].stop_reason == "the model submitted file 3"
    assert sorted(set(asked)) == list(range(7)) and len(answered) == len(set(answered)) == 7
    recorded = log.read_text().splitlines()
    assert recorded.count("measure speedup = 2.5") == 1 and recorded.count("confirm speedup = 2.5") == 1
    # What was being evaluated when the process died is evaluated again, and nothing else.
    assert len(recorded) <= 5 + 1


def test_a_long_conversation_is_shortened_to_what_was_tried_the_best_file_and_the_last_turns(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    padding = "# " + "x" * 9000 + "\n"
    numbers = iter(range(10, 99))

    def measured(body: dict[str, Any], number: int) -> Reply:
        speedup = next(numbers) / 10
        text = padding + file(speedup)
        return (
            calling(("submit", {}))
            if speedup > 2.1
            else calling(("measure", {"file": text, "idea": f"idea {speedup}"}))
        )

    endpoint.script = measured
    assert execute(database, endpoint.base_url, Pool(), rounds=50, context_tokens=20_000)
    sizes = [len(json.dumps(body["messages"])) // 3 for body in endpoint.requests]
    assert max(sizes) < 24_000 and len(sizes) == 13
    shortened = next(body for body in endpoint.requests if "Earlier parts" in body["messages"][1]["content"])
    system, head, turn, answer, *_ = shortened["messages"]
    assert system == endpoint.requests[0]["messages"][0], "providers cache it"
    count = endpoint.requests.index(shortened)
    assert all(f"| {n} | idea {1 + n / 10} | correct |" in head["content"] for n in range(count))
    assert f"# The best file so far (file {count - 1})" in head["content"]
    assert turn["role"] == "assistant" and answer["tool_call_id"] == turn["tool_calls"][0]["id"]
    assert f"File {count - 1}." in shortened["messages"][-1]["content"]
    assert verdicts(database) == ["correct"] * 13


def test_a_conversation_that_the_endpoint_finds_too_long_is_shortened_and_goes_on(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    padding = "# " + "x" * 20_000 + "\n"

    def measured(body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        if len(json.dumps(body["messages"])) > 60_000:
            return ErrorResponse(400, "This model's maximum context length is 16384 tokens.")
        count = len(endpoint.requests)
        return calling(("measure", {"file": padding + file(1 + count / 10)}))

    endpoint.script = measured
    assert execute(database, endpoint.base_url, Pool(), rounds=4)
    assert verdicts(database) == ["correct"] * 5


def test_an_answer_that_is_cut_in_a_call_is_told_to_be_brief(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    cut = Reply("", calls=(("check", '{"file": "import tor'),), finish="length")
    endpoint.say(cut, cut, calling(("submit", {"file": file(2.0)})))  # it is asked for more tokens once
    assert execute(database, endpoint.base_url, Pool())
    [answer] = told(endpoint.requests[2])
    assert "not valid JSON" in answer and "cut off at the limit of tokens" in answer


def test_thoughts_are_given_back_to_an_endpoint_that_wants_them(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    def wants_thoughts(body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        own = [message for message in body["messages"] if message["role"] == "assistant"]
        if any("reasoning_content" not in message for message in own):
            return ErrorResponse(400, "Missing `reasoning_content` field in the assistant message at index 2")
        calls: Calls = (("submit", {}),) if len(own) > 1 else (("measure", {"file": file(2 + len(own))}),)
        return Reply("", reasoning=f"thought {len(own)}", calls=calls)

    endpoint.script = wants_thoughts
    assert execute(database, endpoint.base_url, Pool())
    own = [m["reasoning_content"] for m in endpoint.requests[-1]["messages"] if m["role"] == "assistant"]
    assert own == ["thought 0", "thought 1"] and len(endpoint.requests) == 4
