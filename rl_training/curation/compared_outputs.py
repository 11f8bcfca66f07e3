"""The worker that compares outputs of tasks: it runs their code, and so in the sandbox alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.reference.loading import DTYPES
from kernelwright.kernelbench.evaluator.reference.task_format import constructor_inputs, for_device, inputs_of

_APART = 1e-3  # of the largest output, that equal ones may be apart
_SEED = 0


class _Compared:
    """The task that others are compared with: its model, and outputs on several draws of inputs."""

    def __init__(self, source: str, precision: str) -> None:
        self._precision = precision
        module = _module(source)
        torch.manual_seed(_SEED)
        self._init = constructor_inputs(module["get_init_inputs"](), module["Model"])
        self._model = _converted(module["Model"](*self._init), precision)
        own = [_cast(x, precision) for x in inputs_of(module["get_inputs"](), self._model)]
        normal = [torch.randn_like(x) if _is_float(x) else x for x in own]
        self._draws = [own, normal]
        self._outputs = [_outputs(self._model, draw) for draw in self._draws]
        if not any(_says_something(found) for found in self._outputs):
            raise ValueError("all of its outputs are one number, or none is finite")

    def same(self, source: str, precision: str) -> bool:
        """Tell whether another task's model gives these outputs. False where it cannot take the inputs."""
        try:
            if precision != self._precision:
                return False
            model = _converted(_module(source)["Model"](*self._init), precision)
            if not _given_weights(self._model, model):
                return False
            found = (_outputs(model, draw) for draw in self._draws)
            return all(_alike(one, other) for one, other in zip(self._outputs, found, strict=True))
        except Exception:  # noqa: BLE001 - task code may raise anything, and is another then
            return False


def serve(channel: Channel) -> None:
    """Worker entry: compare one task with others."""
    torch.set_grad_enabled(False)
    message, _ = channel.receive_json()
    try:
        compared = _first(message["sources"], message["precision"])
        channel.send_json({"same": [compared.same(*other) for other in message["others"]]})
    except Exception as error:  # noqa: BLE001 - the same
        channel.send_json({"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


def _first(sources: Sequence[str], precision: str) -> _Compared:
    """Return the first of the sources that runs: smaller sizes do not fit every task."""
    *smaller, own = sources
    for source in smaller:
        try:
            return _Compared(source, precision)
        except Exception:  # noqa: BLE001 - the same
            continue
    return _Compared(own, precision)


def _module(source: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": "reference"}
    exec(compile(for_device(source, torch.device("cpu")), "reference.py", "exec"), module)
    return module


def _converted(model: nn.Module, precision: str) -> nn.Module:
    dtype = DTYPES[precision]
    return model if dtype is None else model.to(dtype)


def _cast(given: Any, precision: str) -> Any:
    dtype = DTYPES[precision]
    return given.to(dtype) if dtype is not None and _is_float(given) else given


def _is_float(given: Any) -> bool:
    return isinstance(given, Tensor) and given.is_floating_point()


def _given_weights(of: nn.Module, to: nn.Module) -> bool:
    """Give a model another's parameters and buffers, in order; False if their shapes differ."""
    ours, theirs = ([*model.parameters(), *model.buffers()] for model in (of, to))
    if [weight.shape for weight in ours] != [weight.shape for weight in theirs]:
        return False
    for weight, other in zip(ours, theirs, strict=True):
        other.copy_(weight)
    return True


def _outputs(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    torch.manual_seed(_SEED)
    copies = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
    found = pytree.tree_leaves(model(*copies))
    return [each.detach().double() for each in found if isinstance(each, Tensor)]


def _says_something(outputs: Sequence[Tensor]) -> bool:
    return any(
        each.isfinite().all() and (each != each.flatten()[0]).any() for each in outputs if each.numel()
    )


def _alike(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    if [each.shape for each in ours] != [each.shape for each in theirs]:
        return False
    for one, other in zip(ours, theirs, strict=True):
        finite = one.isfinite()
        if not torch.equal(finite, other.isfinite()):
            return False
        one, other = one[finite], other[finite]
        if one.numel() and (one - other).abs().max() > _APART * one.abs().max():
            return False
    return True
