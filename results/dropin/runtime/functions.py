"""Functions of modules that kernels compute: RoPE or a loss, say, which no layer holds.

`apply` sets the module's attribute, so all callers that look the function up there get the kernel. It is the
process's, not a model's. Other names for the same function stay what they are; the report lists them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from itertools import takewhile
from types import ModuleType
from typing import Any

from torch import nn

from .alike import differs
from .kernel import DropInKernel
from .usage import Calls

_MARK = "_kernelwright_function"  # on what replaces a function


class PatchedFunction:
    """A function that kernels compute where a call is inside the envelope of one, else the stock one."""

    def __init__(
        self, path: str, kernels: Sequence[DropInKernel], package: str, own: Callable[..., Any]
    ) -> None:
        self.path, self.kernels, self.package, self.own = path, tuple(kernels), package, own
        self.calls = Calls()
        self._forms = [FunctionCall(kernel, own) for kernel in kernels]
        self.active = True

        @wraps(own, updated=())
        def call(*args: Any, **named: Any) -> Any:
            return self._computed(args, named)

        setattr(call, _MARK, self)
        self.call = call

    def _computed(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        why = "it was taken out"
        for form in self._forms if self.active else ():
            tensors = form.tensors(args, named)
            if tensors is None:
                why = _OTHER_CALL
                continue
            fits, why = form.kernel.pays(tensors)
            if fits:
                fits, why = form.kernel.check(*tensors)
            if fits:
                self.calls.add(form.kernel)
                return form.kernel.run(*tensors)
        self.calls.add(self.kernels[-1], why)
        return self.own(*args, **named)


class FunctionCall:
    """Form of the calls of a function that a kernel computes: its tensors, and what else is given."""

    def __init__(self, kernel: DropInKernel, own: Callable[..., Any]) -> None:
        self.kernel, self._own = kernel, own
        called = own.forward if isinstance(own, nn.Module) else own  # the `kernels` library makes modules
        parameters = signature(called).parameters.values()
        self._names = [each.name for each in parameters if each.kind in _BY_PLACE]
        takes = [name for name in self._names if name not in kernel.constants]
        self._takes = takes[: len(kernel.inputs)]
        self._defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        self._rest = {**self._defaults, **kernel.constants}  # values of the other arguments

    def tensors(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any] | None:
        """Return the kernel's inputs, None if others are given than its constants, or than defaults."""
        if len(args) > len(self._names):
            return None
        given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **named}
        for name, value in given.items():
            if name not in self._takes and not (name in self._rest and _same(value, self._rest[name])):
                return None
        if any(name not in given for name in self._rest):  # which is an error of the caller's
            return None
        inputs = [given.get(name) for name in self._takes]
        return None if any(each is None for each in inputs) else inputs

    def by_stock(self, *tensors: Any) -> Any:
        """Call the function itself with tensors for the kernel's inputs."""
        given = {**self.kernel.constants, **dict(zip(self._takes, tensors, strict=True))}
        args = [given.pop(name) for name in takewhile(given.__contains__, tuple(self._names))]
        return self._own(*args, **given)


_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_OTHER_CALL = "it was called with other arguments than the kernel's tensors"


def patched(kernels: Sequence[DropInKernel], package: str) -> tuple[list[PatchedFunction], dict[str, str]]:
    """Return what is to replace functions, not yet put in, and why others are left, by their paths."""
    found, left = [], {}
    kernels = [kernel for kernel in kernels if not kernel.of_output]
    for path in dict.fromkeys(path for kernel in kernels for path in kernel.functions):
        module, name = _place(path)
        own = getattr(module, name, None)
        if module is None:  # so nobody calls it
            continue
        if not callable(own):
            left[path] = "there is no such function"
            continue
        by = getattr(own, _MARK, None)
        if by is not None and by.package != package:
            left[path] = f"{by.package} computes it"
            continue
        own = own if by is None else by.own
        mine = [kernel for kernel in kernels if path in kernel.functions]
        reasons = {kernel.name: _why_not(kernel, own) for kernel in mine}
        if fit := [kernel for kernel in mine if not reasons[kernel.name]]:
            found.append(PatchedFunction(path, fit, package, own))
        else:
            left[path] = "; ".join(dict.fromkeys(reasons.values()))
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
    paths = dict.fromkeys(path for kernel in kernels for path in kernel.functions)
    marks = (getattr(getattr(module, name, None), _MARK, None) for module, name in map(_place, paths))
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
    form = FunctionCall(kernel, own)
    kind = type("Function", (nn.Module,), {"forward": lambda self, *inputs: form.by_stock(*inputs)})
    return differs(kernel, kind(), [])


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and not callable(value) and value == default)
