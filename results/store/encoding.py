"""Encoding of records as text for the run database."""

import json

from pydantic import JsonValue

from kernelwright.kernelbench.records import Record


def record_text(record: Record) -> str:
    return json_text(record.model_dump(mode="json"))


def json_text(value: JsonValue) -> str:
    """Return JSON that keeps inf and NaN, which pydantic's own writer turns into null."""
    return _encodable(json.dumps(value, ensure_ascii=False))


def column_text(text: str) -> str:
    """Return text that every database takes: PostgreSQL refuses NUL. The record's JSON keeps the original."""
    return _encodable(text.replace("\0", "\ufffd"))


def _encodable(text: str) -> str:
    """Return the text without the lone surrogates that undecodable compiler output leaves behind."""
    return text.encode("utf-8", "replace").decode()
