"""Parts of a layer, so that a call can tell whether the layer is still what the kernel replaced.

A kernel computes the whole of a layer. Later changes to its submodules, such as an adapter around one of them
or a hook on one, would have no effect: then the layer's own forward has to compute.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from .usage import Calls

STOCK = "_kernelwright_stock"  # on a class that is a drop-in itself: the class that it stands in for
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    tuple,
    type(None),
    torch.dtype,
    torch.Size,
)  # compared by what they are


class Part(NamedTuple):
    """A module of the layer: "" is the layer itself, whose own hooks run around its forward as before."""

    path: str
    module: nn.Module
    kind: Any  # the class that it stands in for, if it is a drop-in itself
    computes: Any  # the forward of its class
    modules: dict[str, nn.Module | None]
    tensors: frozenset[str]  # parameters and buffers that it has
    settings: tuple[tuple[str, Any], ...]  # other attributes: an epsilon, say, or a function
    inherited: tuple[tuple[str, Any], ...]  # the same of its class, which it has none of its own for

    def difference(self) -> str:
        """Describe what has changed; "" if nothing has."""
        now = self.module.__dict__
        if self.path and (why := _bypassed(self.path, now)):
            return why
        here = self.path or "the layer"
        if stock_class(self.module).forward is not self.computes:
            return f"the class of {here} has another forward now"
        children = now["_modules"]
        for name in (*self.modules, *children):
            if children.get(name) is not self.modules.get(name):
                return f"{_dotted(self.path, name)} is another module now"
        for held in ("_parameters", "_buffers"):
            for name, tensor in now[held].items():
                if tensor is not None and name not in self.tensors:
                    return f"{_dotted(self.path, name)} is new"
        if name := other_setting(now, self.settings) or _other_inherited(
            stock_class(self.module), now, self.inherited
        ):
            return f"{_dotted(self.path, name)} was changed"
        return ""


class LayerSnapshot:
    """Snapshot of a layer's parts. A deep copy of the layer has a copy of it for its own modules."""

    def __init__(self, layer: nn.Module, names: Sequence[Sequence[str]], kernels: Sequence[Any] = ()) -> None:
        """Record the parts of `layer`; `names`: the parameters and buffers that each kernel takes."""
        self.kernels, self.calls = tuple(kernels), Calls()
        self._all = tuple(_part(path, module) for path, module in layer.named_modules())
        self._inner = len(self._all) > 1
        self.takes = positional(stock_class(layer).forward)[1:]  # names of forward's arguments
        self._places = tuple(tuple(place_of(layer, name) for name in each) for each in names)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LayerSnapshot":
        copied = object.__new__(LayerSnapshot)
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce__(self) -> Any:
        return type(None), ()  # a layer that was pickled computes itself, and needs no package to be read

    def changed(self) -> str:
        """Describe what has changed since the kernels were put in; "" if nothing has."""
        if self._inner and _has_any_global_hook():
            return "there are global module hooks"
        for part in self._all:  # in one expression, for it runs before every call
            path, module, kind, computes, modules, tensors, settings, inherited = part
            now = module.__dict__
            if (
                (
                    path
                    and (
                        now["_forward_pre_hooks"]
                        or now["_forward_hooks"]
                        or now["_backward_pre_hooks"]
                        or now["_backward_hooks"]
                        or "forward" in now
                    )
                )
                or (kind or type(module)).forward is not computes
                or now["_modules"] != modules
                or _has_more(now["_parameters"], tensors)
                or _has_more(now["_buffers"], tensors)
                or _are_other(now, settings)
                or (inherited and _other_inherited(kind or type(module), now, inherited))
            ) and (why := part.difference()):
                return why
        return ""

    def held(self, kernel: int) -> list[Any]:
        """Return the current parameters and buffers that the kernel of this number takes."""
        return [tensor_at(module, name) for module, name in self._places[kernel]]


def hooked(layer: nn.Module) -> str:
    """Return the reason a kernel cannot compute this layer, whose submodules do more; "" if it can."""
    found = (_bypassed(path, vars(module)) for path, module in layer.named_modules() if path)
    return next((why for why in found if why), "")


def _bypassed(path: str, now: Mapping[str, Any]) -> str:
    """Return the reason a submodule's code would be skipped; "" if there is none."""
    for hooks in _HOOKS:
        if now[hooks]:
            return f"{path} has hooks"
    return f"the forward of {path} was replaced" if "forward" in now else ""


def _has_more(held: Mapping[str, Any], names: frozenset[str]) -> bool:
    for name, tensor in held.items():  # noqa: SIM110 - quicker than a generator
        if tensor is not None and name not in names:
            return True
    return False


def _are_other(now: Mapping[str, Any], settings: tuple[tuple[str, Any], ...]) -> bool:
    for name, value in settings:  # noqa: SIM110 - quicker than a generator
        if now.get(name) is not value:
            return True
    return False


def other_setting(now: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> str:
    """Return the first setting that has changed; "" if none has."""
    for name, value in settings:
        other = now.get(name)
        if other is not value and not (
            type(value) is type(other) and type(value) in _VALUES and other == value
        ):
            return name
    return ""


def _other_inherited(kind: Any, now: Mapping[str, Any], inherited: tuple[tuple[str, Any], ...]) -> str:
    for name, value in inherited:
        if name in now or getattr(kind, name, None) is not value:
            return name
    return ""


def _inherited(kind: Any, now: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield values and methods of classes that are not torch's, by name, in order: forward may use them."""
    if kind.__module__.partition(".")[0] == "torch":
        return
    for name in dir(kind):
        if not hasattr(nn.Module, name) and name not in now and not is_machinery(name):
            value = getattr(kind, name, None)
            # Private values are frameworks' marks: torchtitan's of whether a module is parallelized.
            if isinstance(value, FunctionType) or (type(value) in _VALUES and not name.startswith("_")):
                yield name, value


def _part(path: str, module: nn.Module) -> Part:
    now = vars(module)
    tensors = {**now["_parameters"], **now["_buffers"]}
    return Part(
        path,
        module,
        getattr(type(module), STOCK, None),
        stock_class(module).forward,
        dict(now["_modules"]),
        frozenset(name for name, tensor in tensors.items() if tensor is not None),
        tuple((name, value) for name, value in now.items() if not is_machinery(name)),
        tuple(_inherited(stock_class(module), now)),
    )


_OWN = frozenset(vars(nn.Module())) | {"forward"}


def is_machinery(name: str) -> bool:
    return name in _OWN or name.startswith("_kernelwright")


def stock(layer: nn.Module) -> Callable[..., Any]:
    """Return the layer's own forward, as its model defines it."""
    return MethodType(stock_class(layer).forward, layer)


def stock_class(layer: nn.Module) -> Any:
    """Return the class whose forward is the layer's own."""
    return getattr(type(layer), STOCK, type(layer))


def classes_of(kind: Any) -> tuple[str, str]:
    """Return a class's names: in full, and its bare one."""
    return f"{kind.__module__}.{kind.__qualname__}", kind.__qualname__


def positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that can be given by position; none if they cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in kinds)


def place_of(layer: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, own = name.rpartition(".")
    return layer.get_submodule(path), own


def tensor_at(module: nn.Module, name: str) -> Any:
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
