"""A reply that should be a record is one, after one more try at most."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from kernelwright.agent.llm.endpoint.client import OpenAIModel
from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.agent.llm.model import Endpoint, Message, ModelCall, ReplyUnusable, Sampling
from kernelwright.agent.llm.reply.structured import _read, ask, strict_schema
from kernelwright.kernelbench.records import Record


class Verdict(Record):
    bottleneck: str
    gain: float
    metrics: dict[str, float] = Field(default_factory=dict)


GOOD = '{"bottleneck": "memory", "gain": 1.5, "metrics": {"bytes": 3}}'


def asked(server: FakeEndpoint, objection=lambda _: None) -> Verdict:
    call = ModelCall(
        role="judge",
        task="t",
        messages=(Message(role="user", content="what is wrong?"),),
        sampling=Sampling(model="m"),
    )

    async def one() -> Verdict:
        model = OpenAIModel(Endpoint(base_url=server.base_url))
        try:
            return await ask(model, call, Verdict, objection)
        finally:
            await model.close()

    return asyncio.run(one())


@pytest.mark.parametrize(
    "reply",
    [
        GOOD,
        f"Sure.\n```json\n{GOOD}\n```\nDone.",
        f"{{not it}} {GOOD} {{}}",
        f"<think>{{}}</think>{GOOD}",
        f'It is launched with {{"BLOCK": 128}}.\n{GOOD}',
        f"{GOOD.replace('memory', 'a first thought')}\nNo:\n{GOOD}",
        f"{GOOD.replace('memory', '...')}\n{GOOD}",
        f"{GOOD}\nin the form of\n{GOOD.replace('memory', '<text>')}",
        f"maybe {GOOD.replace('memory', 'a draft')} </think>\n{GOOD}",
        f'{{"answer": {GOOD}}}',
        f"[{GOOD}]",
        GOOD[:-1] + ', "confidence": 0.9}',
        GOOD.replace("3}", "3,},\n"),
    ],
)
def test_a_record_is_found_in_a_reply(endpoint: FakeEndpoint, reply: str) -> None:
    endpoint.say(reply)
    assert asked(endpoint) == Verdict(bottleneck="memory", gain=1.5, metrics={"bytes": 3})
    assert len(endpoint.requests) == 1
    schema = endpoint.requests[0]["response_format"]["json_schema"]
    assert schema["strict"] and schema["schema"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("I think it is memory.", "no JSON object"),
        ('{"bottleneck": "memory"}', "gain: Field required"),
        ('{"bottleneck": "memory", "gain": "much"}', "gain: "),
        ('{"bottleneck": "memory", "gain": 1.5', "no JSON object"),
        (f"<think>{GOOD}", "no JSON object"),
        (GOOD.replace("memory", "..."), "bottleneck: a placeholder instead of an answer"),
        ('{"bottleneck": "memory"} and {"BLOCK": 3}', "gain: Field required"),
        (json.dumps(strict_schema(Verdict)), "bottleneck: Input should be a valid string"),
        ("", "no JSON object"),
    ],
)
def test_one_that_is_none_is_sent_back_once(endpoint: FakeEndpoint, reply: str, words: str) -> None:
    endpoint.say(reply, GOOD)
    assert asked(endpoint).gain == 1.5
    first, second = endpoint.requests
    assert second["messages"][0] == first["messages"][0]
    answer = "" if reply.startswith("<think>") else reply  # a thought is none
    assert second["messages"][1] == {"role": "assistant", "content": answer or "(nothing)"}
    assert words in second["messages"][2]["content"]


def test_line_breaks_in_texts_and_commas_before_brackets_in_them_are_kept(endpoint: FakeEndpoint) -> None:
    endpoint.say(GOOD.replace("memory", "loads [a, ],\nthen stores"))
    assert asked(endpoint).bottleneck == "loads [a, ],\nthen stores"


@settings(deadline=None)
@given(
    st.text() | st.lists(st.sampled_from([*'{}[]",:\\ ', "\n", '"gain"', "1", GOOD, "<think>"])).map("".join)
)
def test_any_text_gives_a_record_or_a_reason(text: str) -> None:
    record, reason = _read(text, Verdict, lambda _: None)
    assert (record is None) == bool(reason)


def test_two_are_enough(endpoint: FakeEndpoint) -> None:
    endpoint.say("no", "no", GOOD)
    with pytest.raises(ReplyUnusable, match="no usable answer of the judge in two attempts"):
        asked(endpoint)
    assert len(endpoint.requests) == 2


def test_an_objection_is_a_reason_to_ask_again(endpoint: FakeEndpoint) -> None:
    endpoint.say(GOOD.replace("bytes", "made_up"), GOOD)
    found = asked(endpoint, lambda v: None if "bytes" in v.metrics else "there is no metric made_up")
    assert found.metrics == {"bytes": 3}
    assert "no metric made_up" in endpoint.requests[1]["messages"][2]["content"]


def test_the_schema_wants_every_field_and_no_other() -> None:
    schema = strict_schema(Verdict)
    assert schema["required"] == ["bottleneck", "gain", "metrics"]
    assert schema["additionalProperties"] is False
    assert "default" not in schema["properties"]["metrics"]  # type: ignore[index]
