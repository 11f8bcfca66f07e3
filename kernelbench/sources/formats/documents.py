"""JSON, JSON lines and YAML of other projects, read with errors that name the file, the place and the fix."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.entry import read_text

_AGAIN = "correct it, or download the file again"


class ForeignRecord(BaseModel):
    """Record of another project's file; fields that are not named here are none of ours."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)


Kind = TypeVar("Kind", bound=ForeignRecord)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds. Raises UsageError."""
    return _json(read_text(path), str(path))


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where each line of a JSON lines file is ("FILE line 3"), and what it holds. Raises UsageError."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            where = f"{path} line {number}"
            yield where, _json(line, where)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds. Raises UsageError."""
    try:
        found = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise UsageError(f"{path} is not YAML:{line} {problem}", _AGAIN) from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no mapping", "write `name: value` lines")
    return found


def checked(kind: type[Kind], value: Any, where: str, fix: str) -> Kind:
    """Return the record that a value is. Raises UsageError, which names its first fault and the `fix`."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(key) for key in first["loc"])
        said = f"{place} is missing" if first["type"] == "missing" else f"{place}: {first['msg']}"
        raise UsageError(f"{where}: {said.removeprefix(': ')}", fix) from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}:" if error.lineno > 1 else ""
        raise UsageError(f"{where} is not JSON:{line} {error.msg}", _AGAIN) from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply", _AGAIN) from None
