"""Schedules of small tasks, for tests of what chooses among them."""

from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.frontend.trace import trace_json
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.tuner.policy.space import ScheduleSpace
from kernelwright.kernelbench.records import Task


def source_of(expression: str, rows: int = 256, columns: int = 1024) -> str:
    """Return a task that computes an expression of a matrix x."""
    return (
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
        f"    def forward(self, x):\n        return {expression}\n\n\n"
        f"def get_inputs():\n    return [torch.randn({rows}, {columns})]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


def space_of(expression: str, rows: int = 256, columns: int = 1024) -> ScheduleSpace:
    source = source_of(expression, rows, columns)
    return ScheduleSpace(Graph.from_json(trace_json(source)), source, Cpp(every_choice=True))


def task_of(space: ScheduleSpace, name: str) -> Task:
    return Task(id=f"file:{name}", level=1, source=space.source)
