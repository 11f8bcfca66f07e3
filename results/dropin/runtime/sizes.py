"""Free sizes of a kernel: axes of its arguments that may have any length, and what is computed from these.

An argument of shape [batch_size, length, 64] has the free sizes `batch_size` and `length`, and an output may
have an axis of `batch_size * length`. Such texts are in metadata.json.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .envelope import Argument

Size: TypeAlias = int | str  # a number, or text in names of free sizes
Limits: TypeAlias = Mapping[str, tuple[int, int | None]]  # the least and the most, if any, of each free size


def places_of(arguments: Sequence["Argument"]) -> dict[str, tuple[int, int]]:
    """Return for each free size the argument and its axis where it is read."""
    found: dict[str, tuple[int, int]] = {}
    for place, argument in enumerate(arguments):
        for axis, text in enumerate(argument.free):
            if text is not None and text.isidentifier():
                found.setdefault(text, (place, axis))
    return found


def read(arguments: Sequence["Argument"], tensors: Sequence[Any]) -> dict[str, Any]:
    """Return the free sizes that these tensors have, some of which may be None."""
    found: dict[str, Any] = {}
    for argument, tensor in zip(arguments, tensors, strict=False):
        if tensor is not None and tensor.dim() == len(argument.free):
            for text, size in zip(argument.free, tensor.shape, strict=True):
                if text is not None and text.isidentifier():
                    found.setdefault(text, size)
    return found


def at(size: Size, sizes: Mapping[str, Any]) -> Any:
    """Return a size where the free sizes, which may be symbols, have these values. Raises NameError."""
    return size if isinstance(size, int) else eval(_code(size), {"__builtins__": {}}, dict(sizes))


def beyond(sizes: Mapping[str, Any], limits: Limits) -> str:
    """Describe the first size that is beyond its limits; "" if none is."""
    for name, size in sizes.items():
        least, most = limits.get(name, (0, None))
        if size < least or (most is not None and size > most):
            return f"{name} is {size}, the kernel was verified for {said({name: (least, most)})}"
    return ""


def said(limits: Limits) -> str:
    """Describe free sizes: "any batch_size, length from 2 to 64"."""
    return ", ".join(_said(name, *each) for name, each in limits.items())


def _said(name: str, least: int, most: int | None) -> str:
    if most is not None:
        return f"{name} from {least} to {most}"
    return f"{name} from {least} on" if least > 1 else f"any {name}"


@cache
def _code(size: str) -> CodeType:
    return compile(size, "<size>", "eval")
