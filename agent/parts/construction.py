"""Expressions of modules as they were constructed: `Block(256, 8, activation=torch.nn.GELU())`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kernelwright.agent.builtin.ir.names import number


class NotWritten(Exception):  # noqa: N818 - a property of a module
    """A module's construction is not known, or takes what cannot be written."""


class Constructions:
    """The arguments of all modules that were constructed while they were recorded."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record in the block. `Module.__new__` stays replaced: Python cannot quite undo it."""
        recording = True

        def new(cls: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
            module: nn.Module = object.__new__(cls)
            if recording:
                self._of[id(module)] = module, args, kwargs
            return module

        nn.Module.__new__ = staticmethod(new)
        try:
            yield
        finally:
            recording = False

    def text(self, module: nn.Module, names: set[str]) -> str:
        """Return the expression; the names of the task's own that it needs are added. Raises NotWritten."""
        if id(module) not in self._of:
            raise NotWritten
        _, args, kwargs = self._of[id(module)]
        words = [self._value(value, names) for value in args]
        words += [f"{name}={self._value(value, names)}" for name, value in kwargs.items()]
        return f"{_class(type(module), names)}({', '.join(words)})"

    def _value(self, value: Any, names: set[str]) -> str:
        if isinstance(value, nn.Module):
            return self.text(value, names)
        if isinstance(value, type) and issubclass(value, nn.Module):
            return _class(value, names)
        if type(value) is list:
            return f"[{', '.join(self._value(each, names) for each in value)}]"
        if type(value) is tuple:
            inner = [self._value(each, names) for each in value]
            return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
        if type(value) is float:
            return number(value)
        if value is None or type(value) in (bool, int, str, torch.dtype):
            return repr(value)
        name = getattr(value, "__name__", "")
        if value is not None and getattr(nn.functional, name or " ", None) is value:
            return f"torch.nn.functional.{name}"
        raise NotWritten


def _class(kind: type[nn.Module], names: set[str]) -> str:
    name = kind.__qualname__
    if kind.__module__ == "reference" and name.isidentifier():
        names.add(name)
        return name
    if getattr(nn, name, None) is kind:
        return f"torch.nn.{name}"
    raise NotWritten
