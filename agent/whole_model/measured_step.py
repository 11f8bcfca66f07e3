"""A model's step, as it is or with drop-ins, in a worker of its own; see `comparison`."""

import copy
import importlib
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from kernelwright.agent.whole_model.model_name import ModelName, lengths
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.call_graph import said

_SEED = 0  # for weights, and before each forward call whose results are compared: dropout


class MeasuredStep:
    """The step of one model at each of its sizes, by their numbers. Packages stay put in until the end."""

    def __init__(self) -> None:
        self._steps: list[ModelStep] = []
        self._compiled: list[ModelStep] = []
        self._exact: list[dict[str, Tensor]] = []
        self._packages: list[Any] = []
        self._elsewhere: dict[str, list[str]] = {}

    def load(self, model: Mapping[str, Any], trains: bool) -> dict[str, Any]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(_SEED)
        name = ModelName.from_json(model)
        at = name.steps(trains)
        self._steps = [at(lengths(size)) for size in name.workload]
        return {}

    def put_in(self, packages: Sequence[str]) -> dict[str, Any]:
        replaced: dict[str, str] = {}
        for folder in map(Path, packages):
            sys.path.insert(0, str(folder.parent))
            try:
                package = importlib.import_module(folder.name)
                report = package.apply(self._steps[0].model)
                replaced |= report.replaced
                self._elsewhere |= report.elsewhere
            except Exception as error:
                raise UsageError(f"{folder.name} cannot be put in: {said(error)}", "leave it out") from error
            self._packages.append(package)
        self._compiled = []
        return {"replaced": replaced}

    def calls(self) -> dict[str, Any]:
        """Run a step at each size; return how many calls kernels computed, and why they did not others."""
        for step in self._steps:
            step.run()
        reports = [package.report(self._steps[0].model) for package in self._packages]
        found = [calls for report in reports for calls in report.layers.values()]
        why = next((reason for calls in found for reason in calls.by_layer), "")
        reached = sum(sum(calls.by_kernel.values()) for calls in found)
        return {"reached": reached, "why": why, "elsewhere": self._elsewhere}

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
        """Return how far outputs, or the loss and gradients, are from those in float64, by size."""
        pairs = zip(map(_results, self._steps), self._exact, strict=True)
        found = [_errors(results, exact) for results, exact in pairs]
        self._exact = []
        return {"errors": found}


def _errors(results: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest errors, by the largest number of each result."""
    return {
        name: float((results[name].double() - right).abs().max()) / (float(right.abs().max()) or 1.0)
        for name, right in exact.items()
    }


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
