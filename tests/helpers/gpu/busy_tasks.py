"""Tasks and candidates for the tests' own GPU: kernels that take a given time and compute nothing beside."""

from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.evaluator.protocol import Effort
from kernelwright.kernelbench.records import Candidate, Task

BRIEF = Measurement(
    ("eager",), Effort(rounds=1, processes=1, most_processes=1, half_width=1.0, block_share=0.05)
)
REFERENCE = """
import torch
from torch import nn
from tests.helpers.gpu.fake_torch import busy

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64))

    def forward(self, x):
        busy({us})
        return torch.relu(x * self.scale)

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
from torch import nn
from tests.helpers.gpu.fake_torch import busy, lose_context

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64))

    def forward(self, x):
{before}
        return {returned}
"""
RIGHT = "torch.relu(x * self.scale)"
COPYING = """
import torch
from torch import nn
from tests.helpers.gpu.fake_torch import copied

class {name}(nn.Module):
    def forward(self, x):
        return copied(x, {us})

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""


def copying(us: float, candidate_us: float) -> tuple[Task, Candidate]:
    """A task and a candidate that launch one kernel each, which take so long, and nothing beside."""
    reference = COPYING.format(name="Model", us=us)
    source = COPYING.format(name="ModelNew", us=candidate_us)
    task = Task(id=f"test:copying_{us:g}", level=1, source=reference)
    return task, Candidate(source=source, language="torch", author="test")


def task_of(us: float = 20.0) -> Task:
    return Task(id=f"test:{us:g}", level=1, source=REFERENCE.format(us=us))


def candidate_of(returned: str = RIGHT, before: str = "busy(10)") -> Candidate:
    source = CANDIDATE.format(before=" " * 8 + before, returned=returned)
    return Candidate(source=source, language="torch", author="test")
