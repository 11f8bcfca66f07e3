"""Replies as records: requested by JSON schema, validated, and sent back once if invalid."""

import json
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.agent.llm.model import ChatModel, Message, ModelCall, ReplyUnusable
from kernelwright.kernelbench.records import Record

R = TypeVar("R", bound=Record)
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
    """Return the record in a reply, or None and the reason it is invalid."""
    found = _first_object(text)
    if found is None:
        return None, "it contains no JSON object"
    try:
        record = kind.model_validate(found)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors()[:5])
        return None, "; ".join(faults)
    reason = objection(record)
    return (record, "") if reason is None else (None, reason)


def _first_object(text: str) -> dict[str, object] | None:
    """Return the first JSON object in a text, ignoring the text around it."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    for _ in range(100):  # braces that open no object
        if at < 0:
            return None
        try:
            found, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # also of numbers with too many digits
            at = text.find("{", at + 1)
            continue
        return found if isinstance(found, dict) else None
    return None
