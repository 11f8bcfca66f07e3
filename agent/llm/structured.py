"""Replies that are records: asked for by JSON schema, validated, and sent back once where they are not."""

import json
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.agent.llm.model import Call, ChatModel, Message, ReplyUnusable
from kernelwright.kernelbench.records import Record

R = TypeVar("R", bound=Record)
_SHOWN = 4000  # characters of a bad reply that the model is shown again


async def ask(
    model: ChatModel, call: Call, kind: type[R], objection: Callable[[R], str | None] = lambda _: None
) -> R:
    """The record that the model answers with.

    `objection` says what is wrong with one that is valid. A reply that is not valid, or meets an objection,
    is sent back once, with the reason; raises ReplyUnusable when the second is no better.
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
        raise ReplyUnusable(f"twice no usable answer of the {call.role}: {reason}")
    return record


def strict_schema(kind: type[Record]) -> dict[str, object]:
    """A record's JSON schema as strict structured output wants it: all fields required, nothing else."""
    schema = kind.model_json_schema()
    for part in [schema, *schema.get("$defs", {}).values()]:
        if part.get("type") == "object" and "properties" in part:
            part["required"] = list(part["properties"])
            part["additionalProperties"] = False
            for field in part["properties"].values():
                field.pop("default", None)
    return schema


def _read(text: str, kind: type[R], objection: Callable[[R], str | None]) -> tuple[R | None, str]:
    """The record in a reply, or None and what is wrong with it."""
    found = _first_object(text)
    if found is None:
        return None, "there is no JSON object in it"
    try:
        record = kind.model_validate(found)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors()[:5])
        return None, "; ".join(faults)
    reason = objection(record)
    return (record, "") if reason is None else (None, reason)


def _first_object(text: str) -> dict[str, object] | None:
    """The first JSON object in a text, with whatever is around it."""
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
