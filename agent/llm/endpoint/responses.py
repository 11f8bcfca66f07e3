"""The Responses API, by which alone OpenAI serves some models (o3-pro, those for Codex).

Requests are those of Chat Completions until they are sent, and answers are from when they come:

    {"messages": [..., {"role": "tool", "tool_call_id": "c", "content": "ok"}], "max_tokens": 9, ...}
      -> {"input": [..., {"type": "function_call_output", "call_id": "c", "output": "ok"}],
          "max_output_tokens": 9, "store": false, ...}

    {"type": "response.output_text.delta", "delta": "imp"}
      -> {"choices": [{"delta": {"content": "imp"}}]}
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kernelwright.agent.llm.endpoint.answer import Answer

_TRANSLATED = (
    "api", "messages", "stream_options", "max_tokens", "max_completion_tokens", "reasoning_effort",
    "response_format", "tools",
)  # fmt: skip
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def as_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request in the form of the Responses API; it is not stored there."""
    found = {name: value for name, value in body.items() if name not in _TRANSLATED}
    found |= {"input": [item for message in body["messages"] for item in _items(message)], "store": False}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in body:
            found["max_output_tokens"] = body[name]
    if "reasoning_effort" in body:
        found["reasoning"] = {"effort": body["reasoning_effort"]}
    if (asked := body.get("response_format")) is not None:
        found["text"] = {"format": {"type": asked["type"], **asked.get("json_schema", {})}}
    if "tools" in body:
        found["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in body["tools"]]
    return found


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message["tool_call_id"],
            "output": message["content"],
        }
        return
    if message["content"]:
        yield {"role": message["role"], "content": message["content"]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


class ResponsesAnswer(Answer):
    """The part of an answer of the Responses API that has arrived."""

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__(prompt_tokens)
        self._has_output = False

    def _add(self, chunk: dict[str, Any]) -> None:
        for each in self._chunks(chunk):
            super()._add(each)

    def _chunks(self, event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield an event, or a whole response, as chunks of Chat Completions."""
        kind, place = event.get("type"), event.get("output_index")
        item, delta = _object(event.get("item")), event.get("delta")
        if kind == "response.output_text.delta":
            yield self._output({"content": delta})
        elif kind == "response.refusal.delta":
            yield self._output({"refusal": delta})
        elif kind in _REASONING:
            yield _chunk({"reasoning_content": delta})
        elif kind == "response.output_item.added" and item.get("type") == "function_call":
            yield self._output({"tool_calls": [_call(item, place)]})
        elif kind == "response.function_call_arguments.delta":
            yield self._output({"tool_calls": [{"index": place, "function": {"arguments": delta}}]})
        elif kind in _ENDS or event.get("object") == "response":
            yield from self._last(_object(event.get("response")) or event)
        elif kind == "error" or "error" in event:
            yield {
                "error": event.get("error") or {"message": event.get("message"), "code": event.get("code")}
            }

    def _last(self, response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if response.get("error"):
            yield {"error": response["error"]}
            return
        output = [_object(item) for item in response.get("output") or ()]
        for place, item in enumerate(output if not self._has_output else ()):
            if item.get("type") == "function_call":
                yield _chunk({"tool_calls": [_call(item, place)]})
            elif item.get("type") == "reasoning":
                thoughts = [_object(part).get("text") or "" for part in item.get("summary") or ()]
                yield _chunk({"reasoning_content": "\n".join(thoughts)})
            for part in item.get("content") or () if item.get("type") == "message" else ():
                yield _chunk({"content": part.get("text"), "refusal": part.get("refusal")})
        reason = _object(response.get("incomplete_details")).get("reason")
        called = any(item.get("type") == "function_call" for item in output)
        finish = reason or ("tool_calls" if called else "stop")
        yield _chunk({}, finish) | {"usage": response.get("usage")}

    def _output(self, delta: dict[str, Any]) -> dict[str, Any]:
        self._has_output = True
        return _chunk(delta)


def _call(item: Mapping[str, Any], place: object) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"index": place, "id": item.get("call_id"), "function": function}


def _chunk(delta: dict[str, Any], finish: object = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
