"""Gain of fusion by the amount there is to fuse: chains of operators, and batches of independent ones.

    python -m benchmarks fusion

The builtin coder's first kernels against eager and torch.compile. Machine: CPU, quiet. Time: 5 minutes
(estimate). Writes cpu/fusion.md.
"""

from benchmarks.publishing import log, publish
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.evaluator import Measurement, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Interval, Task

CHAINS = (2, 4, 8, 16, 32)  # operators on one tensor
BATCHES = (1, 4, 16, 64, 256)  # tensors, each with operators of its own
_ROWS, _COLUMNS, _SMALL = 1024, 2048, 2048

_OPERATORS = (
    "torch.tanh(x)",
    "x * 1.5",
    "x + y",
    "torch.sigmoid(x)",
    "x - 0.5",
    "x.abs()",
    "x * y",
    "torch.exp(-x)",
)
_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def run() -> None:
    rows = []
    with Referee.start(cache=cache_folder()) as evaluator:
        coder = BuiltinCoder(lambda task: trace(evaluator.sessions.pool, task))
        for kind, counts, source in (("chain", CHAINS, _chain), ("batch", BATCHES, _batch)):
            for count in counts:
                task = Task(id=f"file:{kind}-{count}", level=1, source=source(count))
                candidate = coder.propose(task, [], None)
                evaluation = evaluator.evaluate(task, candidate, Measurement(("eager", "compile")))
                assert evaluation.timing is not None and evaluation.speedup is not None, evaluation.reason
                own = evaluation.timing.candidate_us.median
                kernels = candidate.source.count('extern "C"')
                eager, compiled = evaluation.speedup.eager, evaluation.speedup.compile
                rows.append((kind, str(count), str(kernels), f"{own:.0f}", _cell(eager), _cell(compiled)))
                log(" ".join(rows[-1]))
        machine = evaluator.target.fingerprint
    title = f"Chains of operators on {_ROWS} by {_COLUMNS} floats; batches of independent ones on {_SMALL}"
    header = ("", "operators or tensors", "kernels", "us", "against eager", "against compile")
    publish("fusion", title, header, rows, machine)


def _cell(interval: Interval | None) -> str:
    return f"{interval.median:.2f} [{interval.low:.2f}, {interval.high:.2f}]" if interval else "none"


def _chain(count: int) -> str:
    lines = [f"x = {_OPERATORS[number % len(_OPERATORS)]}" for number in range(count)]
    return _TASK.format(
        init="pass",
        arguments="x, y",
        body="\n        ".join([*lines, "return x"]),
        inputs=f"torch.randn({_ROWS}, {_COLUMNS}), torch.randn({_ROWS}, {_COLUMNS})",
    )


def _batch(count: int) -> str:
    """Return a task that updates several parameters, as an optimizer does."""
    return _TASK.format(
        init=f"self.w = nn.ParameterList(torch.randn({_SMALL}) for _ in range({count}))",
        arguments="rate, x",
        body="return [torch.tanh(w * rate) * x[i] for i, w in enumerate(self.w)]",
        inputs=f"torch.rand(1), torch.randn({count}, {_SMALL})",
    )
