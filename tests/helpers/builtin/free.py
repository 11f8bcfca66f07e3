"""Candidates for free sizes: compiled once, and held against references of several sizes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.agent.builtin.codegen.render import Rendered
from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.frontend.trace import limits_json
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.sizes.free import FreeGraph, compile_free, trace_free
from kernelwright.kernelbench.free_sizes.size import Limits
from kernelwright.kernelbench.sources.overrides import apply
from tests.helpers.builtin.proving import assert_right, graph_of, load, source, task


@dataclass(frozen=True)
class Tracer:
    text: str

    def at(self, sizes: Mapping[str, int]) -> str:
        return apply(self.text, {name: str(size) for name, size in sizes.items()})

    def graph(self, sizes: Mapping[str, int]) -> Graph:
        return graph_of(task(self.at(sizes)))

    def limits(self, sizes: Mapping[str, int], free: Mapping[str, Mapping[int, str]]) -> Limits:
        axes = {name: {str(axis): size for axis, size in own.items()} for name, own in free.items()}
        found = json.loads(limits_json(self.at(sizes), "task", axes))
        return {name: (least, most) for name, (least, most) in found.items()}


def free_source(forward: str, inputs: str, init: str = "pass", arguments: str = "x", **sizes: int) -> str:
    """A task whose file begins with these constants."""
    constants = "".join(f"{name} = {size}\n" for name, size in sizes.items())
    return source(forward, inputs, init, arguments).replace("class Model", f"{constants}\n\nclass Model", 1)


def free_graph(text: str, language: str = "cpp", **sizes: int) -> FreeGraph:
    return trace_free(Tracer(text), sizes, LANGUAGES[language].words)


def free_kernels(text: str, language: str = "cpp", **sizes: int) -> Rendered:
    graph = free_graph(text, language, **sizes)
    return compile_free(graph, text, Schedule.from_dict({}), LANGUAGES[language])


def hold(rendered: Rendered, text: str, folder: Path, *points: Mapping[str, int]) -> Any:
    """Compare with the reference at each of these sizes; return the candidate's module."""
    new = load(rendered.source, folder)
    for point in points:
        reference = load(Tracer(text).at(point), folder)
        torch.manual_seed(0)
        model = reference.Model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model_new = new.ModelNew()
        model_new.load_state_dict(model.state_dict())
        torch.manual_seed(1)
        assert_right(model, model_new, reference.get_inputs())
    return new
