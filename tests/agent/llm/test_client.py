"""Completions come through storms, breaks and silence, or fail in a way that says whether to try again."""

import json
import time
from email.utils import formatdate

import pytest

from kernelwright.agent.llm.endpoint import client
from kernelwright.agent.llm.endpoint.client import OpenAIModel
from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, RawResponse, Reply
from kernelwright.agent.llm.model import (
    Endpoint,
    ModelAbsent,
    ModelRefused,
    Sampling,
)
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from tests.helpers.model_calls import call, completed, in_turn, many


def test_a_streamed_answer_is_put_together(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply("Grüße, 世界 " * 20, reasoning="hm", pieces=40))
    completion = completed(endpoint)
    assert completion.text == "Grüße, 世界 " * 20
    assert completion.reasoning == "hm" and completion.finish == "stop" and completion.attempts == 1
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (100, 50)
    assert not completion.usage.estimated


def test_the_request_has_what_the_role_was_given(endpoint: FakeEndpoint) -> None:
    sampling = Sampling(model="m", temperature=0.3, reasoning_effort="high", max_tokens=77)
    completed(endpoint, call(sampling=sampling, reply_schema={"type": "object"}))
    request = endpoint.requests[0]
    assert request["temperature"] == 0.3 and request["reasoning_effort"] == "high"
    assert request["max_tokens"] == 77 and request["stream"] and request["messages"][1]["content"] == "hello"
    assert request["response_format"]["json_schema"]["schema"] == {"type": "object"}
    completed(endpoint)
    assert not {"temperature", "reasoning_effort", "response_format"} & set(endpoint.requests[1])


def test_thoughts_in_the_answer_are_kept_apart(endpoint: FakeEndpoint) -> None:
    endpoint.say("<think>\nfirst\n</think>\n\nthe answer")
    completion = completed(endpoint)
    assert completion.text == "the answer" and completion.reasoning == "first"
    endpoint.say("<think>a draft</think>\n")  # which is no answer, though nothing follows
    completion = completed(endpoint)
    assert completion.text == "" and completion.reasoning == "a draft"


def test_cached_tokens_are_counted_and_missing_usage_is_estimated(endpoint: FakeEndpoint) -> None:
    usage = {
        "prompt_tokens": 90,
        "completion_tokens": 9,
        "total_tokens": 99,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    endpoint.say(Reply("ok", usage=usage), Reply("x" * 300, usage=None))
    assert completed(endpoint).usage.cached_tokens == 64
    usage_estimated = completed(endpoint).usage
    assert usage_estimated.estimated and 75 <= usage_estimated.completion_tokens <= 300


@pytest.mark.parametrize(
    "fault",
    [
        ErrorResponse(429, headers={"retry-after-ms": "20"}),
        ErrorResponse(500, headers={"retry-after": "0.02"}),
        ErrorResponse(503, headers={"retry-after-ms": "20"}),
        ErrorResponse(408, headers={"retry-after-ms": "20"}),
    ],
    ids=lambda fault: str(fault.status),
)
def test_faults_that_pass_are_waited_out(endpoint: FakeEndpoint, fault: ErrorResponse) -> None:
    endpoint.say(*[fault] * 8, "at last")
    completion = completed(endpoint)
    assert completion.text == "at last" and completion.attempts == 9


def test_the_endpoint_says_how_long_to_wait(endpoint: FakeEndpoint) -> None:
    endpoint.say(ErrorResponse(429, headers={"retry-after": "1.2"}), "ok")
    completion = completed(endpoint)
    assert endpoint.at[1] - endpoint.at[0] >= 1.2
    assert completion.seconds < 1.2, "what it waits for is not charged"


def test_a_pause_may_be_given_as_a_date(endpoint: FakeEndpoint) -> None:
    """HTTP dates have whole seconds, so the pause is one to two of them."""
    endpoint.script = lambda body, number: (
        Reply("ok")
        if number
        else ErrorResponse(503, headers={"Retry-After": formatdate(time.time() + 2, usegmt=True)})
    )
    assert completed(endpoint).attempts == 2
    assert 0.9 <= endpoint.at[1] - endpoint.at[0] < 10.0


def test_without_a_word_the_pauses_grow_and_differ(endpoint: FakeEndpoint) -> None:
    """Of several calls at a time, each pause is drawn from twice the range of the one before."""
    endpoint.say(ErrorResponse(500))
    with pytest.raises(ModelAbsent):
        completed(endpoint, patience_s=2.0, backoff_s=0.05)
    pauses = [b - a for a, b in zip(endpoint.at, endpoint.at[1:], strict=False)]
    assert len(set(pauses)) == len(pauses)
    assert all(pause <= 0.05 * 2**number + 0.3 for number, pause in enumerate(pauses))
    assert max(pauses) > 0.2  # never, if they did not grow


@pytest.mark.parametrize("breaks_after", [0, 1, 3])
def test_a_broken_stream_is_asked_for_again_and_paid_for(endpoint: FakeEndpoint, breaks_after: int) -> None:
    endpoint.say(Reply("y" * 3000, breaks_after=breaks_after), Reply("whole"))
    completion = completed(endpoint)
    assert completion.text == "whole" and completion.attempts == 2
    assert completion.usage.prompt_tokens > 100  # both prompts
    assert completion.usage.estimated and (completion.usage.completion_tokens > 250) == (breaks_after == 3)


def test_a_stream_without_an_end_is_a_broken_one(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply("half an answ", finish=None, usage=None, is_ended=False), "whole")
    assert completed(endpoint).text == "whole"


@pytest.mark.parametrize(
    "body",
    [b"", b"data: {not json}\n\n", b"data: {}\n\n", b'data: "text"\n\n', b"\xff\xfe\x00" * 100,
     b'data: {"choices": [{"delta": null}]}\n\n', b'data: {"error": {"message": "out of memory"}}\n\n'],
)  # fmt: skip
def test_garbage_is_no_answer(endpoint: FakeEndpoint, body: bytes) -> None:
    endpoint.say(RawResponse(body), "whole")
    assert completed(endpoint).text == "whole"


def test_silence_is_given_up(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply("late", latency_s=3), "in time")
    started = time.monotonic()
    assert completed(endpoint, silence_s=0.3).text == "in time"
    assert time.monotonic() - started < 3.5


def test_an_attempt_that_trickles_on_is_given_up(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply("x" * 100, pieces=100, pause_s=0.1), "in time")
    completion = completed(endpoint, call_s=1.0)
    assert completion.text == "in time" and completion.usage.estimated


@pytest.mark.parametrize(
    "body",
    [b"x" * 10**6, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n' * 2000],
    ids=["a line", "events"],
)
def test_an_endless_answer_is_cut_and_asked_for_again(
    endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(client, "_MOST_IN_A_LINE", 10_000)
    monkeypatch.setattr(client, "_MOST_A_TOKEN", 0)
    endpoint.say(RawResponse(body), "whole")
    completion = completed(endpoint)
    assert completion.text == "whole" and completion.attempts == 2
    endpoint.say(*[RawResponse(body)] * 3)
    with pytest.raises(
        ModelAbsent, match=r"no answer in 3 attempts: the answer does not end: \d+ characters"
    ):
        completed(endpoint)


def test_patience_ends(endpoint: FakeEndpoint) -> None:
    endpoint.say(ErrorResponse(429, "slow down", headers={"retry-after-ms": "50"}))
    with pytest.raises(ModelAbsent, match=r"no answer in \d+ attempts: .*slow down"):
        completed(endpoint, patience_s=0.5)
    assert 1 < len(endpoint.requests) < 15


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ErrorResponse(400, "the context is too long"), ModelRefused),
        (ErrorResponse(404, "no such model"), ModelAbsent),
        (ErrorResponse(422, "no"), ModelRefused),
        (ErrorResponse(401, "wrong key"), ModelAbsent),
        (ErrorResponse(403, "not for you"), ModelAbsent),
        (ErrorResponse(429, "no credit", "insufficient_quota"), ModelAbsent),
        (ErrorResponse(429, "tomorrow", headers={"retry-after": "86400"}), ModelAbsent),
    ],
    ids=lambda value: str(getattr(value, "status", value.__name__ if isinstance(value, type) else "")),
)
def test_what_will_not_pass_is_not_tried_again(
    endpoint: FakeEndpoint, fault: ErrorResponse, error: type
) -> None:
    endpoint.say("ok", fault)
    found = in_turn(endpoint, [call(), call("another")])
    assert type(found[1]) is error and fault.message in str(found[1])
    assert len(endpoint.requests) == 2


def test_nobody_there() -> None:
    server = FakeEndpoint()
    server._server.server_close()
    with pytest.raises(ModelAbsent, match="no answer"):
        completed(server, patience_s=0.5)


def test_an_endpoint_without_schemas_is_asked_without(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda body, number: (
        ErrorResponse(400, "'response_format' of type json_schema is not supported")
        if "response_format" in body
        else Reply("{}")
    )
    asked = call(reply_schema={"type": "object"})
    texts = [completion.text for completion in many(endpoint, [asked])]
    assert texts == ["{}"] and len(endpoint.requests) == 2


def test_requests_keep_to_their_rate(endpoint: FakeEndpoint) -> None:
    many(endpoint, [call(str(i)) for i in range(3)], requests_a_minute=12)  # of ten seconds, then one in five
    assert endpoint.at[1] - endpoint.at[0] < 2.5 < endpoint.at[2] - endpoint.at[0]


def test_tokens_keep_to_their_rate(endpoint: FakeEndpoint) -> None:
    # A call may take some 1010; 5000 are there at once, and 500 come a second.
    many(endpoint, [call(str(i)) for i in range(6)], tokens_a_minute=30_000)
    assert endpoint.at[3] - endpoint.at[0] < 1.5 < endpoint.at[5] - endpoint.at[0]


def test_answers_that_break_off_again_and_again_are_not_paid_for_for_ever(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply("y" * 3000, breaks_after=3))
    with pytest.raises(ModelAbsent, match=r"broke off|middle") as error:
        completed(endpoint)
    assert len(endpoint.requests) == 3 and error.value.usage.completion_tokens > 3 * 250


def test_calls_at_a_time_find_out_together_that_there_are_no_schemas(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda body, number: (
        ErrorResponse(400, "'response_format' is not supported") if "response_format" in body else Reply("{}")
    )
    asked = [call(str(i), reply_schema={"type": "object"}) for i in range(6)]
    assert [completion.text for completion in many(endpoint, asked)] == ["{}"] * 6


def test_a_character_that_is_cut_in_two_is_whole_again(endpoint: FakeEndpoint) -> None:
    first, second = ({"choices": [{"index": 0, "delta": {"content": half}, "finish_reason": None}]}
                     for half in ("\ud83d", "\ude42 \ud83d"))  # fmt: skip
    end = {"choices": [{"index": 0, "delta": {"content": ["no", "text"]}, "finish_reason": "stop"}]}
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (first, second, end))
    endpoint.say(RawResponse(body.encode() + b"data: [DONE]\n\n"))
    completion = completed(endpoint)
    assert completion.text == "🙂 \ufffd" and completion.usage.estimated


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("OPENAI_API_KEY", "…", "invalid OPENAI_API_KEY"), ("OPENAI_BASE_URL", "http://host:port/v1", "invalid OPENAI_BASE_URL"),
     ("OPENAI_BASE_URL", "localhost:8000", "invalid OPENAI_BASE_URL")],
)  # fmt: skip
def test_what_cannot_be_an_endpoint_is_said(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=said):
        Endpoint().require()


def test_a_key_is_wanted_for_openai_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(MissingPrerequisite, match="OPENAI_API_KEY"):
        OpenAIModel(Endpoint())
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    OpenAIModel(Endpoint())
