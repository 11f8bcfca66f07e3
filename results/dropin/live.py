"""A copy of a user's module that computes by a verified kernel where a call is like the example.

It shares the module's parameters and buffers, and has its class, its state_dict and its hooks. A call of
another shape, dtype, device or mode, or after something in it was changed, runs the module's own forward.
"""

import copy
import importlib.util
import inspect
import logging
import operator
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator.reference.loading import import_source
from kernelwright.kernelbench.evaluator.reference.task_format import described
from kernelwright.kernelbench.modules.call_form import CallForm
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.runtime.loaded import Loaded
from kernelwright.results.dropin.runtime.parts import LayerSnapshot
from kernelwright.results.dropin.runtime.state import foreign
from kernelwright.results.dropin.winner import Winner

_LIVE = "_kernelwright_live"  # on a layer
_LOG = logging.getLogger("kernelwright")


class LiveKernel(Protocol):
    """A function of the inputs and the weights, both as tensors, in order."""

    @property
    def parameters(self) -> Sequence[str]: ...

    @property
    def check(self) -> Callable[..., tuple[bool, str]]: ...

    def run(self, *tensors: Tensor) -> Any: ...


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class FileKernel:
    """`ModelNew` of a file that no package can be made of, for calls without gradients."""

    def __init__(self, source: str, call: TracedCall, folder: Path) -> None:
        """Load the file. Raises UsageError if its weights are not those of the call."""
        module = import_source(source, f"kernel_{uuid.uuid4().hex[:8]}", folder)
        device = next(iter(call.inputs.values())).device
        with torch.random.fork_rng(devices=[]):
            own = {name: value.shape for name, value in module.ModelNew().state_dict().items()}
        if own != {name: value.shape for name, value in call.weights.items()}:
            raise UsageError(
                "the kernel keeps its weights in another form", "load them into its file by hand"
            )
        self.parameters = list(call.weights)
        placed: Any = SimpleNamespace(ModelNew=lambda: module.ModelNew().to(device))
        self._loaded = Loaded(placed, self.parameters, len(call.inputs))
        self._forms = [_form(tensor) for tensor in (*call.inputs.values(), *call.weights.values())]

    def check(self, *tensors: Tensor) -> tuple[bool, str]:
        if torch.compiler.is_compiling():
            return False, "torch.compile cannot look into it"
        if why := foreign():
            return False, why
        for tensor, form in zip(tensors, self._forms, strict=True):
            if torch.is_grad_enabled() and tensor.requires_grad:
                return False, "a gradient is wanted, and the kernel has none"
            if type(tensor) not in (Tensor, nn.Parameter) or _form(tensor) != form:
                return False, f"{described([tensor])} has not the form of the example's tensor"
        return True, ""

    def run(self, *tensors: Tensor) -> Any:
        found = self._loaded(*tensors)
        return found if len(found) > 1 else found[0]


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.device


def kernel_of(winner: Winner, call: TracedCall, folder: Path) -> LiveKernel:
    """Return a run's kernel for this process: of a package, written to the folder, if it can be one.

    Raises UsageError if it can neither be packaged nor be called with the module's weights.
    """
    name = f"kernelwright_{winner.name}_{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write([PackagedKernel(winner.name, winner)], folder / name, name, measure=False)
    except UsageError as error:
        _LOG.info("%s is not packaged: %s", winner.name, error)
        return FileKernel(winner.candidate.source, call, folder)
    kernel: LiveKernel = _imported(folder / name / name, name).KERNELS[winner.name]
    return kernel


def _imported(folder: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for the imports in it
    spec.loader.exec_module(module)
    return module


def module_with(kernel: LiveKernel, call: TracedCall) -> nn.Module:
    """Return a copy of the traced module, with the same parameters, that computes by the kernel.

    Raises UsageError for one that does more than to return a result.
    """
    if call.writes:
        raise UsageError(
            f"{call.name} writes into {', '.join(call.writes)}, and kernels only return what they compute",
            "give it in evaluation mode, or without that",
        )
    if call.module is None:
        layer: nn.Module = FunctionModule(call.function)
    else:
        shared = {id(each): each for each in (*call.module.parameters(), *call.module.buffers())}
        layer = copy.deepcopy(call.module, shared)
        _check_that_nothing_is_kept(call, layer)
    setattr(layer, _LIVE, _Live(kernel, call, layer))
    layer.forward = MethodType(forward, layer)  # so that a deep copy calls its own, and a pickle the class's
    return layer


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Compute by the kernel of the layer, or by its class's forward."""
    live: _Live | None = vars(self).get(_LIVE)
    if live is not None:
        fits, made = live.computed(self, args, kwargs)
        if fits:
            return made
    return type(self).forward(self, *args, **kwargs)


class _Live:
    """A kernel with the calls that it is for. A pickled layer is one of its own class again."""

    def __init__(self, kernel: LiveKernel, call: TracedCall, layer: nn.Module) -> None:
        self.kernel, self.call = kernel, call
        paths = list(kernel.parameters)
        held = {path for path in paths if _is_held(layer, path)}
        self._outside = [None if path in held else call.weights[path] for path in paths]  # a closure's
        self._parts = LayerSnapshot(layer, [[path for path in paths if path in held]])
        self._mode = None if _computes_alike_in_both_modes(call, layer) else _mode(layer)
        called = layer.forward if call.module is not None else call.function
        try:
            self._signature: inspect.Signature | None = inspect.signature(called)
        except (TypeError, ValueError):  # of a builtin
            self._signature = None
        args, kwargs = call.arguments.filled(list(call.inputs.values()))
        self._arguments = CallForm.of(self._bound(args, kwargs))[0]
        self._plain = not kwargs and all(isinstance(each, Tensor) for each in args)
        self._said: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Live":
        copied = object.__new__(_Live)
        copied.__dict__.update(vars(self))
        copied._parts = copy.deepcopy(self._parts, memo)
        return copied

    def __reduce__(self) -> Any:
        return type(None), ()

    def computed(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Return (True, what the kernel computes), or (False, None) where the layer's own forward has to."""
        made, why = None, self._parts.changed()
        if not why and self._mode is not None and self._mode != _mode(layer):
            why = "it is in another mode, of training or evaluation, than in the example"
        inputs = None if why else self._inputs(args, kwargs)
        if inputs is not None:
            inner = iter(self._parts.held(0))
            weights = [next(inner) if outside is None else outside for outside in self._outside]
            fits, why = self.kernel.check(*inputs, *weights)
            if fits:
                made = self.kernel.run(*inputs, *weights)
                outputs = made if isinstance(made, tuple) else (made,)
                return True, self.call.results.filled(outputs)
        if not torch.compiler.is_compiling():
            self._say(why or "its arguments have another form than in the example")
        return False, None

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Tensor] | None:
        if self._plain and not kwargs and len(args) == len(self.call.inputs):
            return args if all(isinstance(each, Tensor) for each in args) else None
        try:
            return self._arguments.tensors_of(self._bound(args, kwargs))
        except TypeError:  # forward will say so
            return None

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments in one form, whether they are given by place or by name."""
        if self._signature is None:
            return args, kwargs
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            _LOG.warning("%s computes itself, because %s", self.call.name, why)


def _check_that_nothing_is_kept(call: TracedCall, layer: nn.Module) -> None:
    """Raise UsageError for a module whose calls change its attributes."""
    before = LayerSnapshot(layer, [])
    args, kwargs = call.arguments.filled([each.clone() for each in call.inputs.values()])
    with torch.no_grad(), torch.random.fork_rng():
        layer(*args, **kwargs)
    if why := before.changed():
        raise UsageError(f"{call.name} keeps state between calls: {why}", "keep it outside of the module")


def _is_held(layer: nn.Module, path: str) -> bool:
    try:
        return isinstance(operator.attrgetter(path)(layer), Tensor)
    except AttributeError:
        return False


def _mode(layer: nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in layer.modules())


def _computes_alike_in_both_modes(call: TracedCall, layer: nn.Module) -> bool:
    """Return True if training and evaluation mode make the same calls of torch."""
    if call.module is None:
        return True
    before = [(module, module.training) for module in layer.modules()]
    args, kwargs = call.arguments.filled(list(call.inputs.values()))
    try:
        codes = [
            trace_call(layer.train(mode), args, kwargs).graph.python_code("self").src
            for mode in (True, False)
        ]
    except UsageError:
        return False
    finally:
        for module, mode in before:
            module.training = mode
    return codes[0] == codes[1]
