"""Tools that a model may call, and its calls, in the form of the Chat Completions API.

An endpoint streams a call in pieces: its name and id first, then its arguments, a few characters at a time.

    {"index": 0, "id": "call_a", "function": {"name": "check", "arguments": ""}}
    {"index": 0, "function": {"arguments": "{\"file\": \"imp"}}
    {"index": 0, "function": {"arguments": "ort torch…\"}"}}
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pydantic import JsonValue, model_serializer

from kernelwright.kernelbench.records import Record


class CalledFunction(Record):
    name: str
    arguments: str  # JSON, as the model wrote it


class ToolCall(Record):
    """A call; `extra_content` is for the endpoint alone: Google's wants its signatures of thoughts back."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    extra_content: JsonValue = None

    @model_serializer(mode="wrap")
    def _as_sent(self, handler: Callable[[Record], Any]) -> dict[str, Any]:
        return without_defaults(self, handler, ("extra_content",))


class ToolFunction(Record):
    name: str
    description: str
    parameters: dict[str, JsonValue]  # JSON schema of the arguments


class Tool(Record):
    type: Literal["function"] = "function"
    function: ToolFunction


class ToolCallPieces:
    """The part of an answer's calls that has arrived."""

    def __init__(self) -> None:
        self._calls: list[dict[str, str]] = []
        self._by_index: dict[object, dict[str, str]] = {}
        self._extra: dict[int, JsonValue] = {}  # by the place of a call

    def add(self, pieces: object) -> None:
        """Add the `tool_calls` of a chunk, or of a whole message; what is no call is left out.

        Some servers give whole calls without an index, or all with the same one.
        """
        for piece in pieces if isinstance(pieces, list) else ():
            function = piece.get("function") if isinstance(piece, Mapping) else None
            if isinstance(function, Mapping):
                self._add(piece, function)

    def _add(self, piece: Mapping[str, Any], function: Mapping[str, Any]) -> None:
        index, own_id = piece.get("index"), _text(piece.get("id"))
        known = self._by_index.get(index) if index is not None else None
        if known is None or (own_id and known["id"] and own_id != known["id"]):
            known = {"id": own_id, "name": "", "arguments": ""}
            self._calls.append(known)
            self._by_index[index] = known
        known["id"] = known["id"] or own_id
        known["name"] = known["name"] or _text(function.get("name"))
        known["arguments"] += _text(function.get("arguments"))
        if (extra := piece.get("extra_content")) is not None:
            self._extra[next(i for i, call in enumerate(self._calls) if call is known)] = extra

    @property
    def text(self) -> str:
        """All that counts as tokens of the answer."""
        return "".join(call["name"] + call["arguments"] for call in self._calls)

    def whole(self) -> tuple[ToolCall, ...]:
        """Return the calls; one without an id, or with one that another has, gets one."""
        found: list[ToolCall] = []
        for number, call in enumerate(self._calls):
            taken = {other.id for other in found}
            own_id = call["id"] if call["id"] and call["id"] not in taken else f"call_{number}"
            # A character may have been split between two pieces.
            arguments = call["arguments"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            function = CalledFunction(name=call["name"], arguments=arguments)
            found.append(ToolCall(id=own_id, function=function, extra_content=self._extra.get(number)))
        return tuple(found)


def without_defaults(record: Record, handler: Callable[[Record], Any], names: Iterable[str]) -> Any:
    """Serialize a record without the named fields that have their defaults, so that old hashes hold."""
    dumped = handler(record)
    for name in names:
        if getattr(record, name) == type(record).model_fields[name].default:
            dumped.pop(name, None)
    return dumped


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
