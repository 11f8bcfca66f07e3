"""Outputs of `forward` as a flat list of tensors: the same list for what means the same.

    (out, None)                       -> [out, an empty bool tensor]
    {"b": y, "a": x}                  -> [bytes of "a b", x, y]
    Out(logits=x, hidden=y)           -> [bytes of "hidden logits", y, x]     a dataclass or ModelOutput
    (loss.item(), 3)                  -> [float32 of no dimensions, int64]

Tuples and lists are the same. Keys, strings and None become tensors too, and are compared with the rest.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch


class NotAnOutput(Exception):  # noqa: N818 - what it is
    """Error for a result that is neither a tensor, a number, a string or None, nor consists of these."""


def flattened(value: Any, device: torch.device) -> list[torch.Tensor]:
    """Return the tensors; numbers, strings and keys become ones on `device`. Raises NotAnOutput."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in flattened(each, device)]
    fields = _fields(value)
    if fields is not None:
        names = sorted(fields)
        values = [tensor for name in names for tensor in flattened(fields[name], device)]
        return [_bytes(" ".join(names), device), *values]
    return [_constant(value, device)]


def _fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _constant(value: Any, device: torch.device) -> torch.Tensor:
    if value is None:
        return torch.empty(0, dtype=torch.bool, device=device)
    if isinstance(value, bool):
        return torch.tensor(value, device=device)
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise NotAnOutput(f"an output is the integer {str(value)[:40]}, which no int64 holds")
        return torch.tensor(value, dtype=torch.int64, device=device)
    if isinstance(value, float):  # of the precision of the tensors that it comes from, float32 mostly
        return torch.tensor(value, dtype=torch.float32, device=device)
    if isinstance(value, str):
        return _bytes(value, device)
    raise NotAnOutput(
        f"an output is a {type(value).__name__}: return tensors, numbers, strings, None, and tuples, lists, "
        "dicts and dataclasses of them"
    )


def _bytes(text: str, device: torch.device) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
