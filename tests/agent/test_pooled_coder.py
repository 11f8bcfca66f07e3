"""The builtin coder in a run: of a task of several sizes it writes one file for all."""

import pytest

from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.evaluator import CHECK, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Size, Task

SOFTMAX = """
import torch
rows = 8
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2, dim=-1)
def get_inputs():
    return [torch.randn(rows, 32)]
def get_init_inputs():
    return []
"""


def of_rows(*rows: object, source: str = SOFTMAX) -> Task:
    sizes = tuple(Size(constants={"rows": str(each)}, hidden=place == 2) for place, each in enumerate(rows))
    return Task(id="file:softmax", level=0, source=source, workload=sizes)


@pytest.mark.slow
@pytest.mark.builds
def test_one_file_is_right_at_all_sizes_the_hidden_too() -> None:
    task = of_rows(8, 64, 7)
    odd = of_rows(8.0, 64.0, source=SOFTMAX.replace("rows, 32", "int(rows), 32"))
    with Referee.start(cache=cache_folder()) as evaluator, ProfilingPool(evaluator) as pool:
        coder = PooledBuiltinCoder(pool, "cpp")
        candidate = coder.propose(task, (), None)
        assert candidate.language == "cpp" and "int64_t n_rows" in candidate.source
        found = evaluator.evaluate(task, candidate, CHECK)
        assert found.only_checked and found.reason.endswith("at all 3 sizes"), found.reason
        assert "int64_t n_rows" in coder.compiled(task)
        left = coder.propose(odd, (), None)
        assert left.language == "torch"
