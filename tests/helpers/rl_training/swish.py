"""A small task with replies to it, for tests of what pays for them; and the folder that says how."""

from pathlib import Path

from kernelwright.kernelbench.evaluator import Effort
from kernelwright.kernelbench.records import Task
from kernelwright.results.store.encoding import record_text
from kernelwright.rl_training.cluster.host import EvaluationSettings
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import WORK, kernel

SHORT = Effort(rounds=4, processes=1, most_processes=1, most_rounds=4, half_width=0.5, block_share=0.2)
AGAIN = Effort(rounds=5, processes=1, most_processes=1, most_rounds=5, half_width=0.5, block_share=0.2)
TASK = Task(
    id="file:swish",
    level=1,
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x + 1.0

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
""",
)
DATA = TaskData(task=TASK, language="cpp", target=run_factory.TARGET, work=WORK)


def reply(expression: str) -> str:
    return f"Here it is.\n```python\n{kernel(expression)}```\n"


RIGHT = reply("x[i] / (1 + std::exp(-x[i])) + 1")
WRONG = reply("x[i] / (1 + std::exp(-x[i]))")
BROKEN = reply("std::expp(x[i])")


def evaluation(patience_s: float = 600.0) -> EvaluationSettings:
    return EvaluationSettings(
        scheme=SCHEMES["log-speedup"], effort=SHORT, again=AGAIN, patience_s=patience_s, requests=8
    )


def settings(folder: Path, patience_s: float = 600.0) -> Path:
    """The file evaluation.json."""
    path = folder / "evaluation.json"
    path.write_text(record_text(evaluation(patience_s)))
    return path
