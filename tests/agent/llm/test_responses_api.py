"""Models that are served by the Responses API alone: learnt from the refusal, with the same answers and calls.

Events and refusals are worded as those of OpenAI's API.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, RawResponse
from kernelwright.agent.llm.endpoint.preflight import preflight
from kernelwright.agent.llm.model import Endpoint, EndpointUnusable, Message, Sampling
from kernelwright.agent.llm.toolbox import tools
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET
from tests.helpers.model_calls import call, completed, in_turn
from tests.helpers.model_runs import carried_out, says

Body = dict[str, Any]
Event = dict[str, Any]
USAGE = {
    "input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 150,
}  # fmt: skip
WORDS = [
    "This model is only supported in v1/responses and not in v1/chat/completions.",
    "This is not a chat model and thus not supported in the v1/chat/completions endpoint. Did you mean to use v1/completions?",
    "Unsupported legacy protocol: /v1/chat/completions is not supported. Please use /v1/responses.",
]


def message(text: str) -> Event:
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def function_call(name: str, arguments: Body, number: int = 0) -> Event:
    told = {"call_id": f"call_{number}", "name": name, "arguments": json.dumps(arguments)}
    return {"type": "function_call", "id": f"fc_{number}", **told}


def response(output: Sequence[Event], status: str = "completed", **more: Any) -> Event:
    return {"id": "resp_1", "object": "response", "status": status, "error": None, "incomplete_details": None,
            "output": list(output), "usage": USAGE, **more}  # fmt: skip


def events(output: Sequence[Event], thought: str = "") -> Iterator[Event]:
    yield {"type": "response.created", "response": response([], "in_progress", usage=None)}
    if thought:
        yield {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": thought}
    for place, item in enumerate(output):
        called = item["type"] == "function_call"
        yield {"type": "response.output_item.added", "output_index": place,
               "item": item | ({"arguments": ""} if called else {"content": []})}  # fmt: skip
        text = item["arguments"] if called else item["content"][0]["text"]
        kind = "function_call_arguments" if called else "output_text"
        for start in range(0, len(text), 7):
            yield {"type": f"response.{kind}.delta", "output_index": place, "delta": text[start : start + 7]}
        yield {
            "type": f"response.{kind}.done",
            "output_index": place,
            "arguments" if called else "text": text,
        }
        yield {"type": "response.output_item.done", "output_index": place, "item": item}


def streamed(all_events: Sequence[Event]) -> RawResponse:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in all_events]
    return RawResponse("".join(lines).encode())


def answered(*output: Event, thought: str = "") -> RawResponse:
    end = {"type": "response.completed", "response": response(output)}
    return streamed([*events(output, thought), end])


class ResponsesOnly:
    """Serves by the Responses API alone, in turn these answers."""

    def __init__(
        self, *answers: RawResponse | ErrorResponse, words: str = WORDS[0], status: int = 404
    ) -> None:
        self.answers, self.words, self.status = list(answers), words, status

    def __call__(self, body: Body, number: int) -> RawResponse | ErrorResponse:
        if "messages" in body:
            error = {"message": self.words, "type": "invalid_request_error", "param": "model", "code": None}
            return ErrorResponse(self.status, body={"error": error})
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize(("words", "status"), [(WORDS[0], 404), (WORDS[1], 404), (WORDS[2], 400)])
def test_it_is_learnt_from_a_refusal_once(endpoint: FakeEndpoint, words: str, status: int) -> None:
    endpoint.script = ResponsesOnly(answered(message("the answer"), thought="hm"), words=words, status=status)
    first, second = in_turn(endpoint, [call(), call("again")])
    assert (first.text, first.reasoning, first.finish) == ("the answer", "hm", "stop")
    assert (first.usage.prompt_tokens, first.usage.completion_tokens, first.usage.cached_tokens) == (
        100,
        50,
        64,
    )
    assert first.limit == 1000 and not first.usage.estimated
    assert second.text == "the answer"
    assert ["messages" in body for body in endpoint.requests] == [True, False, False]


def test_the_request_is_the_same_in_its_form(endpoint: FakeEndpoint) -> None:
    endpoint.script = ResponsesOnly(answered(message("{}")))
    sampling = Sampling(model="o3-pro", temperature=0.5, reasoning_effort="high", max_tokens=77)
    completed(
        endpoint, call(sampling=sampling, reply_schema={"type": "object"}), extra={"service_tier": "flex"}
    )
    assert endpoint.requests[-1] == {
        "model": "o3-pro",
        "input": [
            {"role": "system", "content": "You write kernels."},
            {"role": "user", "content": "hello"},
        ],
        "stream": True,
        "store": False,
        "max_output_tokens": 77,
        "temperature": 0.5,
        "reasoning": {"effort": "high"},
        "text": {
            "format": {"type": "json_schema", "name": "reply", "schema": {"type": "object"}, "strict": True}
        },
        "service_tier": "flex",
    }


def test_what_it_refuses_there_is_learnt_too(endpoint: FakeEndpoint) -> None:
    refusal = "Unsupported parameter: 'temperature' is not supported with this model."
    error = {"message": refusal, "type": "invalid_request_error", "param": "temperature", "code": None}
    endpoint.script = ResponsesOnly(ErrorResponse(400, body={"error": error}), answered(message("ok")))
    assert completed(endpoint, call(sampling=Sampling(model="o3-pro", temperature=0.5))).text == "ok"
    assert "temperature" not in endpoint.requests[-1] and len(endpoint.requests) == 3


def test_calls_of_tools_go_there_and_back(endpoint: FakeEndpoint) -> None:
    measure, check = function_call("measure", {"file": "é = 1"}), function_call("check", {"base": 0}, 1)
    endpoint.script = ResponsesOnly(
        answered(message("I measure."), measure, check), answered(message("done"))
    )
    [first] = in_turn(endpoint, [call(tools=tools())])
    assert (first.text, first.finish) == ("I measure.", "tool_calls")
    named = [(each.id, each.function.name, json.loads(each.function.arguments)) for each in first.tool_calls]
    assert named == [("call_0", "measure", {"file": "é = 1"}), ("call_1", "check", {"base": 0})]
    told = endpoint.requests[-1]["tools"][0]
    assert told["type"] == "function" and told["parameters"]["type"] == "object" and not told["strict"]

    own = Message(role="assistant", content="I measure.", tool_calls=first.tool_calls)
    results = (
        Message(role="tool", content=text, tool_call_id=f"call_{n}") for n, text in enumerate(["2x", "right"])
    )
    completed(endpoint, call(messages=(*call().messages, own, *results), tools=tools()))
    items = endpoint.requests[-1]["input"][2:]
    assert items[0] == {"role": "assistant", "content": "I measure."}
    assert [item["type"] for item in items[1:]] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert items[1] == {
        "type": "function_call",
        "call_id": "call_0",
        "name": "measure",
        "arguments": '{"file": "\\u00e9 = 1"}',
    }
    assert items[3] == {"type": "function_call_output", "call_id": "call_0", "output": "2x"}


def test_a_cut_answer_is_cut(endpoint: FakeEndpoint) -> None:
    cut = response([message("impor")], "incomplete", incomplete_details={"reason": "max_output_tokens"})
    endpoint.script = ResponsesOnly(
        streamed([*events([message("impor")]), {"type": "response.incomplete", "response": cut}])
    )
    answer = completed(endpoint)
    assert (answer.text, answer.finish) == ("impor", "length")


@pytest.mark.parametrize("whole", [True, False], ids=["one piece", "last event alone"])
def test_an_answer_without_pieces(endpoint: FakeEndpoint, whole: bool) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    found = response([thought, message("ok"), function_call("submit", {})])
    raw = RawResponse(json.dumps(found).encode(), "application/json")
    endpoint.script = ResponsesOnly(
        raw if whole else streamed([{"type": "response.completed", "response": found}])
    )
    answer = completed(endpoint)
    assert (answer.text, answer.reasoning, answer.tool_calls[0].function.name) == ("ok", "hm", "submit")
    assert answer.usage.completion_tokens == 50


def test_a_failure_in_the_middle_is_tried_again(endpoint: FakeEndpoint) -> None:
    failed = response(
        [], "failed", error={"code": "server_error", "message": "The model had an error."}, usage=None
    )
    endpoint.script = ResponsesOnly(
        streamed([*events([message("imp")]), {"type": "response.failed", "response": failed}]),
        streamed([*events([message("imp")])]),
        answered(message("ok")),
    )
    answer = completed(endpoint)
    assert answer.text == "ok" and answer.attempts == 3


def test_a_model_that_is_not_there_either_ends_the_run(endpoint: FakeEndpoint) -> None:
    endpoint.script = ResponsesOnly(ErrorResponse(404, "The model `o9` does not exist"))
    with pytest.raises(EndpointUnusable, match="does not exist"):
        preflight(Endpoint(base_url=endpoint.base_url), [Sampling(model="o9")], print)


def test_a_run_goes_on_with_what_the_preflight_has_learnt(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    said: list[str] = []
    endpoint.script = ResponsesOnly(answered(message('{"ready": true}')))
    found = preflight(Endpoint(base_url=endpoint.base_url), [Sampling(model="o3-pro")], said.append)
    assert found.calls[0][1].text == '{"ready": true}'
    assert len(said) == 1 and said[0].startswith("o3-pro: it is asked by the Responses API from now on, for")
    assert found.requests["o3-pro"].body(found.calls[0][0])["api"] == "responses"


def test_a_run(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    endpoint.script = ResponsesOnly(answered(message(says(2))), answered(message(says(3))))
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as database:
        assert carried_out(database, endpoint, rounds=2, judge="none")
        speedups = [a.evaluation.speedup for a in database.attempts("file:0") if not a.confirms]
        assert [each.eager.median for each in speedups if each and each.eager] == [2.0, 3.0]
        assert all(each.completion_tokens == 50 for each in database.llm_calls())
