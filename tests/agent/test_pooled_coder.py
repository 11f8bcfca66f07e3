"""The builtin coder in a run: of a task of several sizes it writes one file for all."""

import math

import pytest

from kernelwright.agent.pooled_coder import PooledBuiltinCoder
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.evaluator import CHECK, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import (
    Candidate,
    Evaluation,
    Interval,
    Size,
    Speedup,
    Task,
    Timing,
    Verdict,
)

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


def of_speeds(candidate: Candidate, found: Evaluation, *speedups: float) -> Attempt:
    """An attempt with these speedups at the task's sizes, each known within 5%."""
    sizes = []
    for result, speedup in zip(found.sizes, speedups, strict=True):
        timing = Timing(candidate_us=Interval(median=9, low=9, high=9), calls_per_block=1, rounds=5)
        eager = Interval(median=speedup, low=speedup * 0.95, high=speedup * 1.05)
        sizes.append(result.model_copy(update={"timing": timing, "speedup": Speedup(eager=eager)}))
    evaluation = found.model_copy(update={"verdict": Verdict.correct, "sizes": tuple(sizes)})
    return Attempt(candidate, evaluation, None)


@pytest.mark.slow
@pytest.mark.builds
def test_two_files_serve_the_sizes_that_they_are_faster_at() -> None:
    task = of_rows(8, 64, 7)
    with Referee.start(cache=cache_folder()) as evaluator, ProfilingPool(evaluator) as pool:
        coder = PooledBuiltinCoder(pool, "cpp")
        first = coder.propose(task, (), None)
        found = evaluator.evaluate(task, first, CHECK)
        best = of_speeds(first, found, 0.5, 2.0, 0.5)
        merged = coder.fallback(task, [best], best)
        assert merged is not None and merged.parents == (first.sha256,)
        assert f"if x.numel() <= {math.isqrt(8 * 32 * 64 * 32)}:" in merged.source
        checked = evaluator.evaluate(task, merged, CHECK)
        assert checked.only_checked and checked.reason.endswith("at all 3 sizes"), checked.reason
        assert coder.fallback(task, [], of_speeds(first, found, 1.5, 2.0, 1.5)) is None
