"""Replies as records: requested by JSON schema, validated, and sent back once if invalid.

Endpoints that know no schemas answer with JSON in prose, or with nearly JSON. The last object in a reply that
is such a record is taken, also from within another object; keys that the record does not have are ignored,
trailing commas and line breaks in strings are read. An object with placeholders for texts is no record: it is
the schema, shown again.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.agent.llm.model import ChatModel, Message, ModelCall, ReplyUnusable
from kernelwright.agent.llm.reply.thought import without_thought
from kernelwright.kernelbench.records import Record

R = TypeVar("R", bound=Record)
_DECODER = json.JSONDecoder(strict=False)  # takes line breaks in strings
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
_PLACEHOLDER = re.compile(r"\W*|<[^<>]*>|text|string|str")
_MOST_BRACES = 1000  # that open no object
_SHOWN = 4000  # characters of a bad reply that the model is shown again


async def ask(
    model: ChatModel, call: ModelCall, kind: type[R], objection: Callable[[R], str | None] = lambda _: None
) -> R:
    """Return the record that the model answers with.

    `objection` returns the fault of a valid record. A reply that is invalid, or meets an objection, is sent
    back once, with the reason; raises ReplyUnusable if the second is no better.
    """
    call = call.model_copy(update={"reply_schema": strict_schema(kind)})
    reply = (await model.complete(call)).text
    record, reason = _read(reply, kind, objection)
    if record is not None:
        return record
    turns = (
        Message(role="assistant", content=reply[:_SHOWN] or "(nothing)"),
        Message(
            role="user", content=f"That cannot be used: {reason}\nAnswer again, with the JSON object only."
        ),
    )
    again = call.model_copy(update={"messages": (*call.messages, *turns)})
    record, reason = _read((await model.complete(again)).text, kind, objection)
    if record is None:
        raise ReplyUnusable(f"no usable answer of the {call.role} in two attempts: {reason}")
    return record


def strict_schema(kind: type[Record]) -> dict[str, object]:
    """Return a record's JSON schema for strict structured output: all fields required, nothing else."""
    schema = kind.model_json_schema()
    for part in [schema, *schema.get("$defs", {}).values()]:
        if part.get("type") == "object" and "properties" in part:
            part["required"] = list(part["properties"])
            part["additionalProperties"] = False
            for field in part["properties"].values():
                field.pop("default", None)
    return schema


def _read(text: str, kind: type[R], objection: Callable[[R], str | None]) -> tuple[R | None, str]:
    """Return the record in a reply, or None and the reason there is none."""
    answer = _TRAILING_COMMA.sub(r"\1", without_thought(text)[0])
    objects = [part for whole in _objects(answer) for part in _parts(whole)]
    faults: dict[int, str] = {}  # by the number of the record's fields that an object has
    for found in reversed(objects):
        try:
            record = kind.model_validate(found, extra="ignore")
        except ValidationError as error:
            named = (f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors()[:5])
            faults.setdefault(len(found.keys() & kind.model_fields.keys()), "; ".join(named))
            continue
        placeholders = _placeholders(record)
        if placeholders is None:
            reason = objection(record)
            return (record, "") if reason is None else (None, reason)
        faults.setdefault(len(kind.model_fields), placeholders)
    return None, faults[max(faults)] if faults else "it contains no JSON object"


def _objects(text: str) -> Iterator[dict[str, object]]:
    """Yield the JSON objects of a text, in their order, ignoring the text around them."""
    at, failed = text.find("{"), 0
    while at >= 0 and failed < _MOST_BRACES:
        found, end = _decoded(text, at)
        if isinstance(found, dict):
            yield found
            at = text.find("{", end)
        else:
            at, failed = text.find("{", at + 1), failed + 1


def _decoded(text: str, at: int) -> tuple[object, int]:
    """Return the JSON value that begins at a place, and its end; None if there is none."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):  # also of numbers with too many digits
        return None, at


def _parts(value: object) -> Iterator[dict[str, object]]:
    """Yield the objects within a JSON value, and last the value itself if it is one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _parts(part)
    if isinstance(value, dict):
        yield value


def _placeholders(record: Record) -> str | None:
    """Return the fault of a record whose texts are placeholders; None if they are not."""
    texts = {name: text.strip() for name, text in record if isinstance(text, str)}
    empty = [name for name, text in texts.items() if _PLACEHOLDER.fullmatch(text)]
    return f"{', '.join(empty)}: a placeholder instead of an answer" if empty else None
