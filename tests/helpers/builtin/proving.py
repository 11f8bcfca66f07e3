"""Helpers of these tests: propose a candidate for a source, load it, and hold it against float64."""

import copy
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.frontend.trace import trace_json
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.kernelbench.records import Advice, Candidate, Task

TRACES = "KERNELWRIGHT_TEST_TRACES"  # in the environment: the folder that they are kept in
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"


def source(forward: str, inputs: str, init: str = "pass", arguments: str = "x", init_inputs: str = "") -> str:
    """A task in KernelBench format from the pieces that matter; `init` names its arguments after a colon."""
    parameters, _, body = init.rpartition(": ")
    body = body.replace("; ", "\n        ")
    return (
        f"{HEAD}class Model(nn.Module):\n"
        f"    def __init__(self{', ' + parameters if parameters else ''}):\n        super().__init__()\n"
        f"        {body}\n\n    def forward(self, {arguments}):\n        {forward}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n"
        f"def get_init_inputs():\n    return [{init_inputs}]\n"
    )


def task(text: str) -> Task:
    return Task(id="file:test", level=1, source=text)


def coder(language: str = "cpp") -> BuiltinCoder:
    return BuiltinCoder(graph_of, language)


def graph_of(asked: Task) -> Graph:
    """Half a second for each; tests of all languages ask for the same ones, so they are kept for them all."""
    key = hashlib.sha256(f"{asked.precision}\n{asked.source}".encode()).hexdigest()
    kept = Path(os.environ[TRACES]) / f"{key}.json"
    if not kept.exists():
        made = kept.with_suffix(f".{os.getpid()}")
        made.write_text(trace_json(asked.source, asked.precision))
        made.rename(kept)
    return Graph.from_json(kept.read_text())


def propose(text: str, language: str = "cpp", **schedule: str) -> Candidate:
    knobs = {knob.replace("__", "."): value for knob, value in schedule.items()}
    advice = Advice(bottleneck="", method="", plan="", predicted_gain=1.0, schedule=knobs)
    return coder(language).propose(task(text), [], advice if knobs else None)


def load(text: str, folder: Path) -> ModuleType:
    path = folder / f"module_{abs(hash(text))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def models(text: str, candidate: Candidate, folder: Path) -> tuple[Any, Any, list[Any]]:
    """Reference and candidate with the same weights, and inputs."""
    reference, new = load(text, folder), load(candidate.source, folder)
    torch.manual_seed(0)
    model = reference.Model(*reference.get_init_inputs())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # ones and zeros hide mistakes
    model_new = new.ModelNew(*reference.get_init_inputs())
    model_new.load_state_dict(model.state_dict(), strict=True)
    torch.manual_seed(1)
    return model, model_new, reference.get_inputs()


def as_list(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def assert_right(model: Any, model_new: Any, inputs: list[Any]) -> None:
    """The candidate's error against float64 is at most 16 times the reference's own, plus 8 ulp."""
    before = copy.deepcopy(inputs)
    with torch.no_grad():
        wanted = as_list(copy.deepcopy(model).double()(*map(double, inputs)))
        eager = as_list(copy.deepcopy(model)(*copy.deepcopy(inputs)))
    found = as_list(model_new(*inputs))
    for x, y in zip(before, inputs, strict=True):
        assert not isinstance(x, torch.Tensor) or torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))
    assert len(found) == len(eager)
    for ours, theirs, exact in zip(found, eager, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if not theirs.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        assert torch.equal(ours.isnan(), theirs.isnan())
        finite = theirs.isfinite() & exact.isfinite()
        assert torch.equal(ours[~finite].nan_to_num(7.0), theirs[~finite].nan_to_num(7.0))
        error = (theirs.double() - exact)[finite]
        slack = 8 * torch.finfo(theirs.dtype).eps * exact[finite].abs() + 1e-44
        budget = 16 * error.square().mean().sqrt() + slack if error.numel() else slack
        assert ((ours.double() - exact)[finite].abs() <= budget).all()


def prove(text: str, folder: Path, language: str = "cpp", **schedule: str) -> Candidate:
    candidate = propose(text, language, **schedule)
    assert candidate.language == language, candidate.source.splitlines()[0]
    assert_right(*models(text, candidate, folder))
    return candidate


def ruff(text: str, folder: Path) -> str:
    """What ruff says about names, imports and syntax of a file."""
    path = folder / "candidate.py"
    path.write_text(text)
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E7,E9,W,I,B", str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout
