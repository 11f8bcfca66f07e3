"""A model's step and the same with drop-ins, in one worker; see `comparison`."""

import copy
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.call_graph import said

_SEED = 0  # before each forward call whose results are compared: dropout


class TwoSteps:
    def __init__(self) -> None:
        self._steps: dict[str, ModelStep] = {}
        self._compiled: dict[str, ModelStep] = {}

    def load(self, model: Mapping[str, Any], trains: bool) -> dict[str, Any]:
        torch.manual_seed(_SEED)  # for weights and batches
        step = ModelName.from_json(model).step(trains)
        self._steps = {"stock": step, "drop_in": replace(step, model=copy.deepcopy(step.model))}
        return {}

    def put_in(self, packages: Sequence[str]) -> dict[str, Any]:
        model = copy.deepcopy(self._steps["stock"].model)
        replaced: dict[str, str] = {}
        for folder in map(Path, packages):
            sys.path.insert(0, str(folder))
            try:
                package = importlib.import_module(folder.name)
                replaced |= package.apply(model).replaced
            except Exception as error:
                raise UsageError(f"{folder.name} cannot be put in: {said(error)}", "leave it out") from error
        self._steps["drop_in"] = replace(self._steps["stock"], model=model)
        self._compiled = {}
        return {"replaced": replaced}

    def run(self, side: str, compiled: bool, steps: int) -> dict[str, Any]:
        step = self._steps[side]
        if compiled:
            if not self._compiled:
                torch.compiler.reset()
                self._compiled = {
                    name: replace(each, model=torch.compile(each.model)) for name, each in self._steps.items()
                }
            step = self._compiled[side]
        for _ in range(steps):
            step.run()
        return {}

    def peak(self, side: str) -> dict[str, Any]:
        """Return the most memory that a step has at a time, beside weights and gradients that there were."""
        step = self._steps[side]
        step.run()
        if any(parameter.is_cuda for parameter in step.model.parameters()):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step.run()
            return {"bytes": torch.cuda.max_memory_allocated() - before}
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            step.run()
        now = most = 0
        events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return {"bytes": most}

    def deviations(self) -> dict[str, Any]:
        """Return how far outputs and gradients are from those in float64, of both."""
        stock = self._steps["stock"]
        exact = _results(
            replace(
                stock,
                model=copy.deepcopy(stock.model).double(),
                args=_in_float64(stock.args),
                kwargs=_in_float64(stock.kwargs),
            )
        )
        found = []
        results = {side: _results(step) for side, step in self._steps.items()}
        for name, right in exact.items():
            scale = float(right.abs().max()) or 1.0
            errors = {
                f"{side}_error": float((each[name].double() - right).abs().max()) / scale
                for side, each in results.items()
            }
            found.append({"name": name, **errors})
        return {"deviations": found}


def _in_float64(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, value)


def _results(step: ModelStep) -> dict[str, Tensor]:
    """Return the loss and all gradients; of a model that is not trained the floating outputs."""
    torch.manual_seed(_SEED)
    found: dict[str, Tensor] = {}
    if not step.trains:
        with torch.no_grad():
            leaves = pytree.tree_leaves(step.model(*step.args, **step.kwargs))
        outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return {f"output {place}": leaf for place, leaf in enumerate(outputs)}

    def backward(loss: Tensor) -> None:
        found["loss"] = loss.detach()
        loss.backward()
        for name, parameter in step.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad.clone()

    step.forward_and(backward)
    return found
