"""A model's step, as it is or with drop-ins, in a worker of its own; see `comparison`."""

import copy
import importlib
import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from kernelwright.agent.whole_model.losses import at, losses_of
from kernelwright.agent.whole_model.marks import StepCalls
from kernelwright.agent.whole_model.model_name import ModelName, lengths
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.runtime.accuracy import largest_error

_REASON = 400  # characters of the reasons for which a package replaces nothing
_SEED = 0  # for weights, and before each forward call whose results are compared: dropout


class MeasuredStep:
    """The step of one model at each of its sizes, by their numbers, and what a package replaces in it."""

    def __init__(self) -> None:
        self._steps: list[ModelStep] = []
        self._compiled: list[ModelStep] = []
        self._exact: list[dict[str, Tensor]] = []
        self._calls: list[PartCall] = []
        self._package: Any = None
        self._elsewhere: dict[str, list[str]] = {}

    def load(self, model: Mapping[str, Any], trains: bool) -> dict[str, Any]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(_SEED)
        name = ModelName.from_json(model)
        at = name.steps(trains)
        self._steps = [at(lengths(size)) for size in name.workload]
        return {}

    def capture(self, place: str, number: int, of_loss: bool) -> dict[str, Any]:
        """Keep the arguments of a call at each size, before anything is put in."""
        if of_loss:
            self._calls = [PartCall.of_loss(step, place) for step in self._steps]
        else:
            self._calls = [PartCall.of(step, place, number) for step in self._steps]
        return {}

    def put_in(self, package: str) -> dict[str, Any]:
        folder = Path(package)
        sys.path.insert(0, str(folder.parent))
        try:
            self._package = importlib.import_module(folder.name)
            report = self._package.apply(self._steps[0].model)
        except Exception as error:
            why = " ".join(str(error).split())[:_REASON]  # reasons of layers are lines of their own
            raise UsageError(f"{folder.name} cannot be put in: {why}", "leave it out") from error
        self._elsewhere = report.elsewhere
        return {"replaced": report.replaced}

    def calls(self) -> dict[str, Any]:
        """Run a step at each size; return how many calls kernels computed, and why they did not others."""
        for step in self._steps:
            step.run()
        found = list(self._package.report(self._steps[0].model).layers.values())
        why = next((reason for calls in found for reason in calls.by_layer), "")
        reached = sum(sum(calls.by_kernel.values()) for calls in found)
        return {"reached": reached, "why": why, "elsewhere": self._elsewhere}

    def run_part(self, size: int, steps: int) -> dict[str, Any]:
        for _ in range(steps):
            self._calls[size].run()
        return {}

    def run(self, size: int, compiled: bool, steps: int) -> dict[str, Any]:
        if compiled and not self._compiled:
            torch.compiler.reset()
            model = torch.compile(self._steps[0].model)
            self._compiled = [replace(step, model=model) for step in self._steps]
        step = (self._compiled if compiled else self._steps)[size]
        for _ in range(steps):
            step.run()
        return {}

    def peak(self) -> dict[str, Any]:
        """Return the most memory that a step has at a time, beside weights and gradients that there were."""
        return {"bytes": max(map(_peak, self._steps))}

    def keep_exact(self) -> dict[str, Any]:
        """Compute outputs or gradients in float64 at each size, before functions are replaced."""
        model = copy.deepcopy(self._steps[0].model).double()
        self._exact = [
            _results(replace(step, model=model, args=_in_float64(step.args), kwargs=_in_float64(step.kwargs)))
            for step in self._steps
        ]
        return {}

    def errors(self) -> dict[str, Any]:
        """Return how far outputs, or the loss and gradients, are from those in float64, by size.

        With how far those of kernels may be, if these are the model's own.
        """
        found, budgets = [], []
        for step, exact in zip(self._steps, self._exact, strict=True):
            results = _results(step)
            errors = {name: _error(results.get(name), right) for name, right in exact.items()}
            found.append(errors)
            budgets.append({n: largest_error(e, results[n].dtype) for n, e in errors.items() if n in results})
        self._exact = []
        return {"errors": found, "budgets": budgets}


def _error(result: Tensor | None, exact: Tensor) -> float:
    """Return the largest error of a result, by its largest number; infinite of one that is none, or NaN."""
    if result is None or result.shape != exact.shape:
        return math.inf
    error = float((result.double() - exact).abs().max()) / (float(exact.abs().max()) or 1.0)
    return math.inf if math.isnan(error) else error


@dataclass
class PartCall:
    """A call of a module or function as it was in a step, in training with its backward pass."""

    called: Callable[[], Callable[..., Any]]  # gives what is called, which a package may replace
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    trains: bool
    weights: list[Tensor]
    gradients: list[Tensor] = field(default_factory=list)  # of outputs

    @classmethod
    def of(cls, step: ModelStep, place: str, number: int) -> "PartCall":
        """Run a step, and return the call with this number at a place. Raises UsageError where it fails."""
        site, example = StepCalls.of(step).call(place, number)

        def called() -> Callable[..., Any]:
            if isinstance(site.called, nn.Module):
                return cast(Callable[..., Any], site.called)
            module, _, name = site.kind.rpartition(".")
            return cast(Callable[..., Any], getattr(sys.modules[module], name))

        args, kwargs = pytree.tree_map_only(Tensor, _leaf, (example.args, example.kwargs))
        weights = list(site.called.parameters()) if isinstance(site.called, nn.Module) else []
        return cls(called, args, kwargs, step.trains, [each for each in weights if each.requires_grad])

    @classmethod
    def of_loss(cls, step: ModelStep, path: str) -> "PartCall":
        """Run a step, and return a call of the layer at a path and of the loss of its output."""
        loss = at(losses_of(step), path)

        def called(x: Tensor, target: Tensor) -> Tensor:
            logits = loss.linear(x)
            return cross_entropy(logits.float() if loss.casts else logits, target, **loss.constants)

        args = (_leaf(loss.x), loss.target)
        weights = [each for each in loss.linear.parameters() if each.requires_grad]
        return cls(lambda: called, args, {}, step.trains, weights)

    def run(self) -> None:
        with torch.set_grad_enabled(self.trains):
            made = pytree.tree_leaves(self.called()(*self.args, **self.kwargs))
        outputs = [each for each in made if isinstance(each, Tensor) and each.requires_grad]
        if not outputs:
            return
        if not self.gradients:
            self.gradients = [torch.randn_like(each) for each in outputs]
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        wanted = [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]
        torch.autograd.grad(outputs, [*wanted, *self.weights], self.gradients, allow_unused=True)


def _leaf(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides that autograd did not make."""
    copied = tensor.detach().clone(memory_format=torch.preserve_format)
    return copied.requires_grad_(tensor.requires_grad)


def _peak(step: ModelStep) -> int:
    step.run()
    if any(parameter.is_cuda for parameter in step.model.parameters()):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step.run()
        return int(torch.cuda.max_memory_allocated()) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step.run()
    now = most = 0
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return int(most)


def _in_float64(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, value)


def _results(step: ModelStep) -> dict[str, Tensor]:
    """Return the loss and all gradients; of a model that is not trained the floating outputs."""
    torch.manual_seed(_SEED)
    found: dict[str, Tensor] = {}

    def keep(made: Any) -> None:
        if not step.trains:
            leaves = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]
            floats = [leaf for leaf in leaves if leaf.is_floating_point()]
            found.update({f"output {place}": leaf for place, leaf in enumerate(floats)})
            return
        found["loss"] = made.detach()
        made.backward()
        for name, parameter in step.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad.clone()

    step.forward_and(keep)
    return found
