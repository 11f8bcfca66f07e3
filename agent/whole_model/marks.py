"""Marks of the place where a step is, made by hooks of modules and by Python's own of function calls."""

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.utils import _pytree as pytree

from kernelwright.agent.whole_model.places import CallExample, CallSite
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError

MARK = "kernelwright part "  # what names of the profiler's ranges begin with


class Marks:
    """Marks of the places where a step of a model is."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._functions = _Functions(model)
        self._known: dict[str, CallSite] = {}
        self.root = self._place(None, "", model)
        self._stack: list[CallSite] = []
        self._open: list[Any] = []

    @property
    def here(self) -> CallSite:
        return self._stack[-1] if self._stack else self.root

    def places(self) -> list[CallSite]:
        return [self.root, *self.root.descendants()]

    def numbered(self) -> dict[str, CallSite]:
        return {self._mark(place): place for place in self.places()}

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Keep the arguments of calls: of each kind and form the first."""
        kept: dict[tuple[str, str], CallExample] = {}

        def keep(place: CallSite, args: Any, kwargs: Any) -> None:
            form = _form(place.called, args, kwargs)
            recorded = _recorded(args, kwargs)
            known = kept.get((place.kind, form))
            if known is None:
                known = call = CallExample(form, args, kwargs, True, recorded)
                kept[place.kind, form] = call
            else:
                known.differentiated[:] = map(or_, known.differentiated, recorded)
                call = CallExample(form)
            known.of_sums.append(_reads_a_sum(args))
            place.calls.append(call)

        with self._hooked(keep, lambda: None):
            yield

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Have the profiler see where calls begin and end."""

        def begin(place: CallSite, args: Any, kwargs: Any) -> None:
            self._open.append(record_function(self._mark(place)).__enter__())

        def end() -> None:
            self._open.pop().__exit__(None, None, None)

        with self._hooked(begin, end):
            yield

    def _mark(self, place: CallSite) -> str:
        return f"{MARK}{id(place)}"

    def _place(self, parent: CallSite | None, path: str, called: Any) -> CallSite:
        """Return the place of a path, wherever it is called: under a checkpoint in the backward pass too."""
        if path not in self._known:
            self._known[path] = CallSite(path, called, parent)
            if parent is not None:
                parent.children.append(self._known[path])
        return self._known[path]

    @contextmanager
    def _hooked(self, begin: Callable[[CallSite, Any, Any], None], end: Callable[[], None]) -> Iterator[None]:
        def entered(called: Any, path: str, args: Any, kwargs: Any) -> None:
            place = self.root if called is self._model else self._place(self.here, path, called)
            self._stack.append(place)
            begin(place, args, kwargs)

        def left() -> None:
            end()
            self._stack.pop()

        def on_call(frame: types.FrameType, event: str, _: Any) -> None:
            function = self._functions.of(frame)
            if function is None:
                return
            if event == "call":
                args, kwargs = _arguments(frame)
                entered(function, f"{self.here.path}:{function.__name__}", args, kwargs)
            elif event == "return":
                left()

        handles = []
        for module in self._model.modules():
            path = self._paths[id(module)]
            handles.append(
                module.register_forward_pre_hook(
                    lambda module, args, kwargs, path=path: entered(module, path, args, kwargs),
                    with_kwargs=True,
                    prepend=True,
                )
            )
            handles.append(
                module.register_forward_hook(lambda module, args, output: left(), always_call=True)
            )
        before = sys.getprofile()
        sys.setprofile(on_call)
        try:
            yield
        finally:
            sys.setprofile(before)
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class StepCalls:
    """Calls of one step, by place; arguments are kept once for each kind and form."""

    places: dict[str, CallSite]
    kept: dict[tuple[str, str], CallExample]

    @classmethod
    def of(cls, step: ModelStep) -> "StepCalls":
        """Run a step. Raises UsageError where the model fails."""
        marks = Marks(step.model)
        with marks.capturing():
            step.run()
        places = marks.places()
        kept = {(each.kind, call.form): call for each in places for call in each.calls if call.is_kept}
        return cls({each.path: each for each in places}, kept)

    def call(self, path: str, number: int) -> tuple[CallSite, CallExample]:
        """Return a place and its call with this number, with arguments. Raises UsageError without one."""
        site = self.places.get(path)
        if site is None or number >= len(site.calls):
            raise UsageError(f"{path} is not called at all sizes", "give sizes at which it is")
        return site, self.kept[site.kind, site.calls[number].form]


class _Functions:
    """Plain functions of the packages that the model's classes are of, by their code; methods are none."""

    def __init__(self, model: nn.Module) -> None:
        self._packages = {_package(type(module).__module__) for module in model.modules()} - {"torch"}
        self._known: dict[types.CodeType, types.FunctionType | None] = {}

    def of(self, frame: types.FrameType) -> types.FunctionType | None:
        """Return the function that a frame runs; None for what is no such function."""
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._found(code, frame.f_globals)
        return self._known[code]

    def _found(self, code: types.CodeType, scope: dict[str, Any]) -> types.FunctionType | None:
        if _package(scope.get("__name__", "")) not in self._packages or not code.co_argcount:
            return None
        is_method = code.co_varnames[0] in ("self", "cls")
        if is_method or code.co_freevars or code.co_flags & inspect.CO_GENERATOR or "<" in code.co_qualname:
            return None
        function = types.FunctionType(code, scope)  # without defaults: a frame has all its arguments
        function.__qualname__ = code.co_qualname
        return function


def _package(name: str) -> str:
    return name.partition(".")[0]


def _form(called: Any, args: Any, kwargs: Any) -> str:
    """Return the shapes, dtypes and constants of a call, and those of a module's weights and settings."""

    def of(leaf: Any) -> str:
        if isinstance(leaf, Tensor):
            return f"{leaf.dtype}{list(leaf.shape)}"
        return repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf).__name__

    held = [repr(called), *map(of, called.parameters())] if isinstance(called, nn.Module) else []
    return " ".join([*map(of, pytree.tree_leaves((args, kwargs))), *held])


def _recorded(args: Any, kwargs: Any) -> list[bool]:
    """Return for each tensor among the arguments whether autograd records it."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    return [torch.is_grad_enabled() and each.requires_grad for each in tensors]


def _reads_a_sum(args: Any) -> bool:
    made_by = getattr(args[0], "grad_fn", None) if args else None
    return made_by is not None and made_by.name() == "AddBackward0"


def _arguments(frame: types.FrameType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    args = tuple(frame.f_locals[name] for name in names)
    if code.co_flags & inspect.CO_VARARGS:
        args += frame.f_locals[code.co_varnames[rest]]
        rest += 1
    kwargs = {name: frame.f_locals[name] for name in by_name}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs |= frame.f_locals[code.co_varnames[rest]]
    return args, kwargs
