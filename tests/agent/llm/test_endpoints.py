"""Endpoints as they are: what they refuse is learnt once, what they answer is kept, whatever it looks like.

Bodies of refusals are worded as those of the services and servers named beside them.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, RawResponse, Reply
from kernelwright.agent.llm.model import (
    EndpointUnusable,
    Message,
    ModelAbsent,
    ModelCall,
    ModelRefused,
    Sampling,
)
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.agent.llm.toolbox import tools
from tests.helpers.model_calls import call, completed, in_turn, many

Body = dict[str, Any]
TEXT = "```python\nclass ModelNew: ...\n```"
USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}


def chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def refused(message: str, status: int = 400, param: str | None = None) -> ErrorResponse:
    return ErrorResponse(status, body={"error": {"message": message, "param": param, "code": None}})


def asked(**changes: Any) -> ModelCall:
    sampling = Sampling(model="m", temperature=0.7, reasoning_effort="high", max_tokens=16384)
    return call(sampling=sampling, **changes)


def above(most: int) -> Callable[[Body], bool]:
    return lambda body: body.get("max_tokens", 0) > most


def has(name: str) -> Callable[[Body], bool]:
    return lambda body: bool(body.get(name))


def has_system(body: Body) -> bool:
    return body["messages"][0]["role"] == "system"


# What the endpoint refuses, its words, and what is then in the request that it accepts.
REFUSALS: dict[str, tuple[Callable[[Body], bool], ErrorResponse, Body]] = {
    "openai_limit": (
        above(8192), refused("max_tokens is too large: 16384. This model supports at most 8192 completion tokens, "
                             "whereas you provided 16384.", param="max_tokens"), {"max_tokens": 8192}),
    "deepseek_limit": (
        above(8192), refused("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"), {"max_tokens": 8192}),
    "anthropic_limit": (
        above(4096), refused("max_tokens: 16384 > 4096, which is the maximum allowed number of output tokens for "
                             "claude-3-haiku-20240307"), {"max_tokens": 4096}),
    "gemini_limit": (
        above(8192), ErrorResponse(400, body=[{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message":
            "Unable to submit request because it has a maxOutputTokens value of 16384 but the supported range is from "
            "1 (inclusive) to 8193 (exclusive)."}}]), {"max_tokens": 8192}),
    "limit_without_a_number": (above(5000), refused("litellm.BadRequestError: Error code: 400 - max_tokens is too large"), {"max_tokens": 4096}),
    "vllm_context": (
        above(13000), ErrorResponse(400, body={"object": "error", "type": "BadRequestError", "code": 400, "message":
            "This model's maximum context length is 16384 tokens. However, you requested 19103 tokens (2719 in the "
            "messages, 16384 in the completion). Please reduce the length of the messages or completion."}),
        {"max_tokens": (16384 - 2719 - 16) * 9 // 10}),
    "tgi_context": (
        above(8100), ErrorResponse(422, body={"error_type": "validation", "error":
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 80 `inputs` tokens and "
            "16384 `max_new_tokens`"}), {"max_tokens": 8193 - 80 - 16}),
    "o_series_limit_s_name": (
        has("max_tokens"), refused("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                                   "'max_completion_tokens' instead.", param="max_tokens"),
        {"max_completion_tokens": 16384, "max_tokens": None}),
    "mistral_stream_options": (
        has("stream_options"), ErrorResponse(422, body={"object": "error", "message": {"detail": [
            {"type": "extra_forbidden", "loc": ["body", "stream_options", "include_usage"],
             "msg": "Extra inputs are not permitted", "input": {"temperature": 0.7}}]}}),
        {"stream_options": None, "temperature": 0.7}),
    "o_series_temperature": (
        has("temperature"), refused("Unsupported value: 'temperature' does not support 0.7 with this model. Only the "
                                    "default (1) value is supported.", param="temperature"),
        {"temperature": None, "reasoning_effort": "high"}),
    "openai_reasoning_effort": (
        has("reasoning_effort"), refused("Unrecognized request argument supplied: reasoning_effort"),
        {"reasoning_effort": None, "temperature": 0.7}),
    "openai_unverified_stream": (
        has("stream"), refused("Your organization must be verified to stream this model.", param="stream"),
        {"stream": False, "stream_options": None}),
    "gemma_system": (
        has_system, refused("System role not supported"),
        {"messages": [{"role": "user", "content": "You write kernels.\n\nhello"}]}),
    "mistral_roles": (
        has_system, refused("Conversation roles must alternate user/assistant/user/assistant/..."),
        {"messages": [{"role": "user", "content": "You write kernels.\n\nhello"}]}),
    "schema": (has("response_format"), refused("response_format: json_schema is not supported", param="response_format"),
               {"response_format": None}),
    "schema_unnamed": (has("response_format"), refused("This response format type is unavailable now"),
                       {"response_format": None}),
    "schema_422": (
        lambda body: body.get("response_format", {}).get("type") == "json_schema",
        ErrorResponse(422, body={"detail": [{"loc": ["body", "response_format", "type"],
                                             "msg": "unexpected value; permitted: 'text', 'json_object'"}]}),
        {"response_format": {"type": "json_object"}}),
    "schema_500": (has("response_format"), refused("Grammar compilation failed", 500), {"response_format": None}),
    "strict": (
        lambda body: "strict" in body.get("response_format", {}).get("json_schema", {}),
        refused("Unknown parameter: 'response_format.json_schema.strict'."),
        {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": {"type": "object"}}}}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_parameter_is_changed_and_not_sent_again(case: str, endpoint: FakeEndpoint) -> None:
    is_refused, words, accepted = REFUSALS[case]

    def script(body: Body, number: int) -> Reply | ErrorResponse | RawResponse:
        if is_refused(body):
            return words
        if body["stream"]:
            return Reply(TEXT)
        whole = {
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": TEXT}}],
            "usage": USAGE,
        }
        return RawResponse(json.dumps(whole).encode(), "application/json")

    endpoint.script = script
    calls = [asked(sample=n, reply_schema={"type": "object"}) for n in range(2)]
    assert [completion.text for completion in in_turn(endpoint, calls)] == [TEXT, TEXT]
    refusals = [is_refused(body) for body in endpoint.requests]
    assert refusals[-2:] == [False, False] and len(refusals) <= 5, "what was learnt is kept"
    for name, value in accepted.items():
        assert endpoint.requests[-1].get(name) == value, name


def test_a_refusal_that_names_nothing_stands_and_is_quoted_whole(endpoint: FakeEndpoint) -> None:
    body = {
        "detail": [{"loc": ["body", "messages", 0], "msg": "Input should be shorter", "input": "x" * 5000}]
    }
    endpoint.script = lambda request, number: Reply("ok") if number == 0 else ErrorResponse(422, body=body)
    _, error = in_turn(endpoint, [asked(), asked(sample=1)])
    assert str(error) == "HTTP 422: body.messages.0: Input should be shorter" and len(endpoint.requests) == 2


def test_a_prompt_that_is_too_long_is_no_reason_to_shorten_replies(endpoint: FakeEndpoint) -> None:
    words = (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    )
    endpoint.script = lambda body, number: refused(words) if number == 1 else Reply("ok")
    _, error, _ = in_turn(endpoint, [asked(), asked(sample=1), asked(sample=2)])
    assert isinstance(error, ModelRefused) and "9000" in str(error)
    assert [body["max_tokens"] for body in endpoint.requests] == [16384] * 3


def test_calls_at_the_same_time_learn_a_limit_once(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda body, number: (
        refused("the valid range of max_tokens is [1, 8192]") if body["max_tokens"] > 8192 else Reply("ok")
    )
    calls = [asked(sample=n) for n in range(6)]
    assert [completion.limit for completion in many(endpoint, calls)] == [8192] * 6
    assert {body["max_tokens"] for body in endpoint.requests} == {16384, 8192}


WHOLE: dict[str, Reply | RawResponse] = {
    "usage_of_nulls": Reply("", chunks=(chunk({"content": TEXT}), chunk({}, "stop", usage=dict.fromkeys(USAGE)))),
    "usage_of_zeros": Reply("", chunks=(chunk({"content": TEXT}), chunk({}, "stop", usage=dict.fromkeys(USAGE, 0)))),
    "choices_null": Reply("", chunks=(chunk({"content": TEXT}), chunk({}, "stop"), {"choices": None, "usage": USAGE})),
    "delta_null": Reply("", chunks=(chunk(None), chunk({"content": TEXT}), chunk(None, "stop"))),
    "no_finish": Reply("", chunks=(chunk({"content": TEXT}), {"choices": [], "usage": USAGE})),
    "no_finish_no_usage": Reply("", chunks=(chunk({"content": TEXT}),)),
    "finish_without_done": Reply("", chunks=(chunk({"content": TEXT}, "stop"),), is_ended=False),
    "parts": Reply("", chunks=(
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        chunk({"content": [{"type": "text", "text": TEXT}]}), chunk({}, "stop", usage=USAGE))),
    "reasoning_details": Reply("", chunks=(
        chunk({"content": "", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        chunk({"content": TEXT}, "stop"))),
    "other_choices": Reply("", chunks=(
        chunk({"content": TEXT}), {"choices": [{"index": 1, "delta": {"content": "OTHER"}}]}, chunk({}, "stop"))),
    "comments": RawResponse(
        b": PROCESSING\n\nevent: message\nid: 1\ndata: " + json.dumps(chunk({"content": TEXT}, "stop")).encode() + b"\n\n"),
    "garbage_after_the_end": RawResponse(
        b"data: " + json.dumps(chunk({"content": TEXT}, "stop")).encode() + b"\n\ndata: {broken\n\ndata: [DONE]\n\n"),
    "json_in_one_piece": RawResponse(json.dumps(
        {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": TEXT}}], "usage": USAGE}, indent=1
    ).encode(), "application/json"),
    "thought_whole": Reply(f"<think>\n{TEXT.replace('...', '0')}\n</think>\n\n{TEXT}"),
    "thought_not_opened": Reply(f"{TEXT.replace('...', '0')}\n</think>\n\n{TEXT}"),
    "thought_in_another_tag": Reply(f"<thinking>{TEXT.replace('...', '0')}</thinking>\n{TEXT}"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_an_answer_that_came_whole_is_kept_and_paid_for_once(case: str, endpoint: FakeEndpoint) -> None:
    endpoint.say(WHOLE[case])
    completion = completed(endpoint)
    assert completion.text == TEXT and completion.finish == "stop" and len(endpoint.requests) == 1
    usage = completion.usage
    assert usage.estimated or usage.prompt_tokens in (10, 100)
    assert usage.prompt_tokens > 0 and usage.completion_tokens >= 5


@pytest.mark.parametrize("tag", ["<think>", "<thinking>", "  <reasoning>"])
def test_a_thought_that_was_cut_is_no_answer(tag: str, endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply(f"{tag}\nmaybe\n{TEXT}\nbut wait", finish="length"))
    completion = completed(endpoint)
    assert completion.text == "" and TEXT in completion.reasoning and completion.finish == "length"


def test_a_cut_thought_that_no_tag_opens_is_known_by_the_answers_before(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply(f"hm</think>{TEXT}"), Reply(f"maybe {TEXT} no", finish="max_tokens"))
    whole, cut = in_turn(endpoint, [call(), call(sample=1)])
    assert whole.text == TEXT and (cut.text, cut.finish) == ("", "length") and TEXT in cut.reasoning


def test_tokens_are_read_by_every_name_they_have(endpoint: FakeEndpoint) -> None:
    usages: list[tuple[Body, tuple[int, int, int, int]]] = [
        ({"input_tokens": 7, "output_tokens": 3}, (7, 3, 0, 0)),
        (USAGE | {"prompt_cache_hit_tokens": 4}, (10, 20, 4, 0)),
        (USAGE | {"cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}, (10, 20, 4, 5)),
        (USAGE | {"prompt_tokens_details": {"cached_tokens": None, "cache_write_tokens": 6}}, (10, 20, 0, 6)),
        (USAGE | {"total_tokens": 130}, (10, 120, 0, 0)),  # reasoning in the total alone
    ]
    for usage, expected in usages:
        endpoint.say(Reply(TEXT, usage=usage))
        found = completed(endpoint).usage
        known = (found.prompt_tokens, found.completion_tokens, found.cached_tokens, found.cache_write_tokens)
        assert known == expected and not found.estimated, usage


def test_an_error_in_place_of_an_answer_is_quoted(endpoint: FakeEndpoint) -> None:
    error = {"error": {"code": 402, "message": "Insufficient credits"}}
    endpoint.say(RawResponse(json.dumps(error).encode(), "application/json"))
    with pytest.raises(EndpointUnusable, match="HTTP 402: Insufficient credits"):
        completed(endpoint)
    assert len(endpoint.requests) == 1


def test_a_web_page_is_no_model(endpoint: FakeEndpoint) -> None:
    endpoint.say(RawResponse(b"<html><title>It works!</title></html>", "text/html"))
    with pytest.raises(EndpointUnusable, match=r"not that of a model.*It works!"):
        completed(endpoint)


def test_a_model_s_own_words_of_refusal_are_its_answer(endpoint: FakeEndpoint) -> None:
    endpoint.say(Reply("", chunks=(chunk({"content": None, "refusal": "I cannot help."}), chunk({}, "stop"))))
    assert completed(endpoint).text == "I cannot help."


def test_the_arguments_of_a_tool_that_nobody_offered_are_the_answer(endpoint: FakeEndpoint) -> None:
    given = {"code": "class ModelNew: ..."}
    endpoint.say(Reply("", calls=(("python", given),)))
    answer = completed(endpoint)
    assert json.loads(answer.text) == given and not answer.tool_calls
    assert candidate_source(answer.text).strip() == given["code"]


def test_an_endpoint_that_answers_nothing_is_unusable_at_once(endpoint: FakeEndpoint) -> None:
    endpoint.say(refused("no such thing"))
    [error] = in_turn(endpoint, [call()])
    assert isinstance(error, EndpointUnusable) and "no such thing" in str(error)


def test_one_that_answered_is_unusable_after_three_calls_in_a_row(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda body, number: Reply("ok") if number in (0, 3) else ErrorResponse(401, "expired")
    found = in_turn(endpoint, [call(sample=n) for n in range(7)])
    kinds = [type(each) for each in found]
    assert kinds[1:3] == [ModelAbsent] * 2 and kinds[4:] == [ModelAbsent, ModelAbsent, EndpointUnusable]


def test_refusals_of_one_task_s_prompts_end_no_run(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda body, number: refused("content policy") if number else Reply("ok")
    found = in_turn(endpoint, [call(sample=n) for n in range(6)])
    assert [type(each) for each in found[1:]] == [ModelRefused] * 5
    endpoint.script = lambda body, number: refused("reasoning_content must be given back")
    found = in_turn(endpoint, [call(task=f"t{n}") for n in range(3)], answered=True)
    assert [type(each) for each in found] == [ModelRefused] * 3


def test_the_limit_of_an_answer_is_the_one_that_was_sent(endpoint: FakeEndpoint) -> None:
    endpoint.say("whole", Reply("cut", finish="length"))
    assert completed(endpoint).limit == 1000
    assert completed(endpoint, extra={"max_tokens": 400}).limit == 400


def test_messages_keep_their_order_where_the_system_s_is_merged(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda body, number: (
        refused("System role not supported") if has_system(body) else Reply("ok")
    )
    turns = (*call().messages, Message(role="assistant", content="a"), Message(role="user", content="again"))
    completed(endpoint, call(messages=turns))
    assert [m["role"] for m in endpoint.requests[-1]["messages"]] == ["user", "assistant", "user"]


CLAUDE = Sampling(model="anthropic/claude-sonnet-4.5")
MARK = {"type": "ephemeral"}


def test_what_claude_is_to_cache_is_marked(endpoint: FakeEndpoint) -> None:
    """OpenRouter and LiteLLM pass the marks on; other models cache by themselves."""
    endpoint.say("ok")
    completed(endpoint, call(sampling=CLAUDE))
    system, user = endpoint.requests[-1]["messages"]
    assert system["content"] == [{"type": "text", "text": "You write kernels.", "cache_control": MARK}]
    assert user["content"] == "hello"
    completed(endpoint, call(sampling=CLAUDE, tools=tools()))  # a conversation, which grows
    assert [m["content"][0]["cache_control"] for m in endpoint.requests[-1]["messages"]] == [MARK, MARK]
    completed(endpoint, call())
    assert endpoint.requests[-1]["messages"][0]["content"] == "You write kernels."


@pytest.mark.parametrize(
    "words",
    [
        "messages.0.content.0.text.cache_control: Extra inputs are not permitted",
        "2 validation errors: body.messages.0.content: Input should be a valid string",
        "Failed to deserialize: messages[0].content: invalid type: sequence, expected a string",
    ],
)
def test_marks_that_are_refused_are_left_out_from_then_on(endpoint: FakeEndpoint, words: str) -> None:
    def script(body: Body, number: int) -> Reply | ErrorResponse:
        return refused(words) if isinstance(body["messages"][0]["content"], list) else Reply("ok")

    endpoint.script = script
    answers = in_turn(endpoint, [call(sampling=CLAUDE, sample=number) for number in range(2)])
    assert [answer.text for answer in answers] == ["ok", "ok"] and len(endpoint.requests) == 3
    assert endpoint.requests[-1]["messages"][0] == {"role": "system", "content": "You write kernels."}
