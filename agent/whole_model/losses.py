"""Losses of a linear layer's output: the last layer of a language model and its cross-entropy as one part.

They are two places of a model, with casts and views between them. So a step is run in which outputs of wide
linear layers are followed through these to the function that reads them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from kernelwright.agent.whole_model.marks import Marks
from kernelwright.agent.whole_model.places import CallSite
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call

LINEAR = "torch.nn.modules.linear.Linear"
LOSS = "torch.nn.functional.cross_entropy"
_LEAST_COLUMNS = 4096  # of a layer whose output is worth not to be in memory; the builtin coder's number
_FOLLOWED = {Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.contiguous, Tensor.float, Tensor.to}
_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class LossOfLinear:
    """A call of cross_entropy with the output of a linear layer, of which `x` are the rows.

    `constants`: its other arguments; `casts`: whether the output is cast to float32 before; `within`: path of
    the place that calls it.
    """

    path: str
    linear: nn.Linear
    x: Tensor
    target: Tensor
    constants: dict[str, Any]
    casts: bool
    within: str

    @property
    def module(self) -> "LinearCrossEntropy":
        return LinearCrossEntropy(self.linear, self.constants, self.casts)

    def traced(self) -> TracedCall:
        """Return the call as it is traced for a task. Raises UsageError."""
        return trace_call(self.module, (self.x, self.target), {})


class LinearCrossEntropy(nn.Module):
    """The two as one module, with the layer's names of weights."""

    def __init__(self, layer: nn.Linear, constants: dict[str, Any], casts: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._constants, self._casts = constants, casts

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logits = linear(x, self.weight, self.bias)
        return cross_entropy(logits.float() if self._casts else logits, target, **self._constants)


def losses_of(step: ModelStep) -> list[LossOfLinear]:
    """Run a step, and return the losses of linear layers in it.

    None of a model that fails with outputs of another class than Tensor, as which they are followed.
    """
    marks = Marks(step.model)
    found: list[LossOfLinear] = []
    try:
        with marks.capturing(), _followed(step.model, _Watch(marks, found)):
            step.run()
    except UsageError:
        return []
    return found


@dataclass
class _Watch:
    marks: Marks
    found: list[LossOfLinear]
    paths: dict[int, str] = field(default_factory=dict)

    def add(self, output: "_Followed", arguments: dict[str, Any]) -> None:
        target = arguments.pop("target")
        given = {n: v for n, v in arguments.items() if n != "input" and v is not DEFAULTS[n]}
        constants = {n: v for n, v in given.items() if isinstance(v, _CONSTANTS) and v != DEFAULTS[n]}
        rows, x = output.shape[:-1].numel(), output.x.detach().flatten(0, -2)
        plain = all(isinstance(v, _CONSTANTS) for v in given.values())
        plain = plain and len(output.shape) == 2 and len(x) == rows
        if plain and isinstance(target, Tensor) and target.dim() == 1:
            wide = output.dtype is torch.float32 and x.dtype is not torch.float32
            if wide or output.dtype is x.dtype:
                path = self.paths[id(output.linear)]
                x = x.requires_grad_(output.x.requires_grad)
                here = self.marks.here.path
                self.found.append(LossOfLinear(path, output.linear, x, target, constants, wide, here))


class _Followed(Tensor):
    """Output of a layer, or a view or cast of one that keeps its rows."""

    linear: nn.Linear
    x: Tensor
    watch: _Watch

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own = args[0] if args and isinstance(args[0], _Followed) else kwargs.get("input")
        with torch._C.DisableTorchFunctionSubclass():
            if func is cross_entropy and isinstance(own, _Followed):
                own.watch.add(own, dict(_LOSS_FORM.bind(*args, **kwargs).arguments))
            made = func(*args, **kwargs)
        kept = func in _FOLLOWED and isinstance(own, _Followed) and isinstance(made, Tensor)
        if kept and made.dim() and made.shape[-1] == own.shape[-1]:
            return _follow(made, own.linear, own.x, own.watch)
        return made.as_subclass(Tensor) if isinstance(made, _Followed) else made


_LOSS_FORM = signature(cross_entropy)
DEFAULTS = {n: p.default for n, p in _LOSS_FORM.parameters.items() if p.default is not Parameter.empty}


def _follow(made: Tensor, layer: nn.Linear, x: Tensor, watch: _Watch) -> Tensor:
    followed: Any = made.as_subclass(_Followed)
    followed.linear, followed.x, followed.watch = layer, x, watch
    return followed


@contextmanager
def _followed(model: nn.Module, watch: _Watch) -> Iterator[None]:
    handles = []
    for path, module in model.named_modules():
        if type(module) is nn.Linear and module.out_features >= _LEAST_COLUMNS:
            watch.paths[id(module)] = path

            def follow(layer: Any, args: Sequence[Any], output: Tensor) -> Tensor:
                return _follow(output, layer, args[0], watch)

            handles.append(module.register_forward_hook(follow))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def at(losses: Sequence[LossOfLinear], path: str) -> LossOfLinear:
    """Return the loss of this layer's output. Raises UsageError where there is none."""
    for each in losses:
        if each.path == path:
            return each
    raise UsageError(f"{path} is not followed by a loss at all sizes", "give sizes at which it is")


def place_at(places: Sequence[CallSite], path: str) -> CallSite:
    return next(place for place in places if place.path == path)
