"""Functions of modules that kernels compute: RoPE or a loss, say, which no layer holds.

`apply` sets the module's attribute, so all callers that look the function up there get the kernel. It is the
process's, not a model's. Other names for the same function stay what they are; the report lists them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from torch import nn

from .alike import differs
from .kernel import DropInKernel
from .usage import Calls

_MARK = "_kernelwright_function"  # on what replaces a function


class PatchedFunction:
    """A function that a kernel computes where a call is inside its envelope, else the stock one."""

    def __init__(self, path: str, kernel: DropInKernel, package: str, own: Callable[..., Any]) -> None:
        self.path, self.kernel, self.package, self.own = path, kernel, package, own
        self.calls, self.kernels = Calls(), (kernel,)
        called = own.forward if isinstance(own, nn.Module) else own  # the `kernels` library makes modules
        parameters = signature(called).parameters.values()
        self._names = [each.name for each in parameters if each.kind in _BY_PLACE]
        takes = [name for name in self._names if name not in kernel.constants]
        self.takes = takes[: len(kernel.inputs)]
        self._defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        self._rest = {**self._defaults, **kernel.constants}  # values of the other arguments
        self.active = True

        @wraps(own, updated=())
        def call(*args: Any, **named: Any) -> Any:
            return self._computed(args, named)

        setattr(call, _MARK, self)
        self.call = call

    def _computed(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        kernel = self.kernel
        why = "it was taken out" if not self.active else ""
        if not why:
            tensors = self._tensors(args, named)
            fits, why = (False, _OTHER_CALL) if tensors is None else kernel.pays(tensors)
            if fits and tensors is not None:
                fits, why = kernel.check(*tensors)
            if fits and tensors is not None:
                self.calls.add(kernel)
                return kernel.run(*tensors)
        self.calls.add(kernel, why)
        return self.own(*args, **named)

    def _tensors(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any] | None:
        """Return the kernel's inputs, None if others are given than its constants, or than defaults."""
        if len(args) > len(self._names):
            return None
        given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **named}
        for name, value in given.items():
            if name not in self.takes and not (name in self._rest and _same(value, self._rest[name])):
                return None
        if any(name not in given for name in self._rest):  # which is an error of the caller's
            return None
        inputs = [given.get(name) for name in self.takes]
        return None if any(each is None for each in inputs) else inputs


_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_OTHER_CALL = "it was called with other arguments than the kernel's tensors"


def patched(kernels: Sequence[DropInKernel], package: str) -> tuple[list[PatchedFunction], dict[str, str]]:
    """Return what is to replace functions, not yet put in, and why others are left, by their paths."""
    found, left = [], {}
    for kernel in kernels:
        for path in kernel.functions:
            module, name = _place(path)
            own = getattr(module, name, None)
            if module is None:  # so nobody calls it
                continue
            if not callable(own):
                left[path] = "there is no such function"
                continue
            by = getattr(own, _MARK, None)
            if by is not None:
                own = by.own
            why = f"{by.package} computes it" if by and by.package != package else _why_not(kernel, own)
            if why:
                left[path] = why
            else:
                found.append(PatchedFunction(path, kernel, package, own))
    return found, left


def put(function: PatchedFunction) -> list[str]:
    """Put a function's replacement into its module; return the other names of the function itself."""
    remove_from(function.path, function.package)
    module, name = _place(function.path)
    setattr(module, name, function.call)
    return sorted(
        f"{each}.{other}"
        for each, held in list(sys.modules.items())
        if isinstance(held, ModuleType)
        for other, value in list(vars(held).items())
        if value is function.own
        or (type(value) is dict and any(item is function.own for item in list(value.values())))
    )


def put_in(kernels: Sequence[DropInKernel], package: str) -> list[PatchedFunction]:
    """Return the functions that these kernels compute now."""
    places = (_place(path) for kernel in kernels for path in kernel.functions)
    marks = (getattr(getattr(module, name, None), _MARK, None) for module, name in places)
    return [mark for mark in marks if mark is not None and mark.package == package]


def remove_from(path: str, package: str) -> int:
    """Put the stock function back if this package has replaced it; return the number of functions."""
    module, name = _place(path)
    mark: PatchedFunction | None = getattr(getattr(module, name, None), _MARK, None)
    if mark is None or mark.package != package:
        return 0
    mark.active = False  # for those who have kept it
    setattr(module, name, mark.own)
    return 1


def _place(path: str) -> tuple[ModuleType | None, str]:
    module, _, name = path.rpartition(".")
    return sys.modules.get(module), name


def _why_not(kernel: DropInKernel, own: Callable[..., Any]) -> str:
    """Return the reason the function is not what the kernel was made for; "" if it is."""
    if kernel.why_not_here:
        return kernel.why_not_here
    takes = PatchedFunction("", kernel, "", own).takes

    def forward(self: nn.Module, *inputs: Any) -> Any:
        return own(**kernel.constants, **dict(zip(takes, inputs, strict=True)))

    return differs(kernel, type("Function", (nn.Module,), {"forward": forward})(), [])


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and not callable(value) and value == default)
