"""Calls of tools as endpoints stream them, and as requests hold them."""

from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.tool_calls import ToolCallPieces
from kernelwright.agent.llm.model import Message, ModelCall, Sampling
from kernelwright.agent.llm.toolbox import read, tools


def piece(index: int | None, name: str = "", arguments: str | None = "", **more: Any) -> dict[str, Any]:
    return {"index": index, "function": {"name": name or None, "arguments": arguments}, **more}


STREAMS: dict[str, list[Any]] = {
    "openai": [
        [piece(0, "check", id="a")], [piece(0, arguments='{"ba')], [piece(0, arguments='se": 0}')],
        [piece(1, "submit", id="b")], [piece(1, arguments="{}")],
    ],
    "both at a time": [[piece(0, "check", '{"base": 0}', id="a"), piece(1, "submit", "{}", id="b")]],
    "mixed": [
        [piece(0, "check", '{"base"', id="a"), piece(1, "submit", "{", id="b")],
        [piece(1, arguments="}"), piece(0, arguments=": 0}")],
    ],
    "whole calls without an index": [
        [piece(None, "check", '{"base": 0}', id="a")], [piece(None, "submit", "{}", id="b")]
    ],
    "whole calls with one index": [
        [piece(0, "check", '{"base": 0}', id="a")], [piece(0, "submit", "{}", id="b")]
    ],
    "junk between": [
        None, [], "x", [3], [{"index": 5}], [piece(0, "check", '{"base": 0}', id="a"), piece(1, "submit", None, id="b")],
        [piece(1, arguments="{}")],
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", STREAMS)
def test_calls_are_put_together_however_they_are_streamed(way: str) -> None:
    pieces = ToolCallPieces()
    for chunk in STREAMS[way]:
        pieces.add(chunk)
    calls = [(call.id, call.function.name, call.function.arguments) for call in pieces.whole()]
    assert calls == [("a", "check", '{"base": 0}'), ("b", "submit", "{}")]


def test_calls_without_ids_get_different_ones() -> None:
    pieces = ToolCallPieces()
    pieces.add(
        [piece(None, "check", "{}"), piece(None, "check", "{}"), piece(None, "submit", "{}", id="call_0")]
    )
    ids = [call.id for call in pieces.whole()]
    assert len(set(ids)) == 3 and all(ids)


def test_a_call_without_tools_has_the_hash_that_it_always_had() -> None:
    """Else runs of earlier versions could not be resumed without paying again."""
    messages = (Message(role="system", content="a"), Message(role="user", content="b"))
    call = ModelCall(role="coder", task="t", messages=messages, sampling=Sampling(model="m"))
    assert call.sha256 == "521905e0cf0d8204bff3e3c0289810116c95d84da5b709727d6ffd586fd551b7"
    assert call.model_copy(update={"tools": tools()}).sha256 != call.sha256


def test_a_request_with_tools_is_read_again_as_it_was() -> None:
    pieces = ToolCallPieces()
    pieces.add([piece(0, "check", '{"base": 0}', id="a")])
    own = Message(role="assistant", content="", tool_calls=pieces.whole(), reasoning_content="hm")
    answer = Message(role="tool", content="File 0.", tool_call_id="a")
    call = ModelCall(
        role="agent", task="t", messages=(own, answer), sampling=Sampling(model="m"), tools=tools()
    )
    assert ModelCall.model_validate(call.model_dump(mode="json")) == call


def test_what_an_endpoint_adds_to_a_call_it_gets_back() -> None:
    """Gemini refuses a conversation without its signatures of thoughts."""
    signature = {"google": {"thought_signature": "c2lnbmVk"}}
    pieces = ToolCallPieces()
    pieces.add([piece(0, "check", "{}", id="a", extra_content=signature), piece(1, "submit", "{}", id="b")])
    sent = Message(role="assistant", content="", tool_calls=pieces.whole()).model_dump(mode="json")
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [signature, None]
    assert "extra_content" not in sent["tool_calls"][1] and sent["content"] is None


def test_schemas_are_plain_and_name_every_argument() -> None:
    for tool in tools():
        text = tool.function.model_dump_json()
        assert not any(word in text for word in ("$ref", "anyOf", '"title"', '"default"'))
        assert tool.function.description and tool.function.parameters["type"] == "object"
    check = next(tool for tool in tools() if tool.function.name == "check")
    properties = check.function.parameters["properties"]
    assert isinstance(properties, dict) and set(properties) == {"file", "base", "edits", "idea"}


def test_arguments_that_a_model_wrote_as_text_or_null_are_read_as_meant() -> None:
    pieces = ToolCallPieces()
    edits = '"[{\\"search\\": \\"a\\", \\"replace\\": \\"b\\"}]"'
    pieces.add([piece(0, "check", f'{{"base": 0, "file": null, "edits": {edits}}}', id="a")])
    assert read(pieces.whole()[0]).model_dump(exclude={"idea"}) == {
        "file": None, "base": 0, "edits": ({"search": "a", "replace": "b"},)
    }  # fmt: skip
