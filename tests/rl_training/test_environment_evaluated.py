"""The environment over the real evaluator: kernels are compiled, verified and timed."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.evaluator import Effort, Protocol, Referee
from kernelwright.kernelbench.records import Candidate, Interval, Task, Verdict
from kernelwright.rl_training.environment.gold import gold_check
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData, WinningKernel
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.rl_training.recorded import builtin_task, kernel

pytestmark = pytest.mark.builds

SHORT = Effort(rounds=4, processes=1, most_processes=1, most_rounds=4, half_width=0.3, block_share=0.3)
AGAIN = Effort(rounds=5, processes=1, most_processes=1, most_rounds=5, half_width=0.3, block_share=0.3)
TASK = Task(
    id="file:swish_tanh",
    level=1,
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x + torch.tanh(x) * torch.exp(-x * x)

def get_inputs():
    return [torch.randn(256, 1024)]

def get_init_inputs():
    return []
""",
)
RIGHT = kernel("x[i] / (1 + std::exp(-x[i])) + std::tanh(x[i]) * std::exp(-x[i] * x[i])")
WRONG = kernel("x[i] / (1 + std::exp(-x[i]))")
BROKEN = kernel("std::tangh(x[i])")


@pytest.fixture(scope="module")
def pool(home: Path) -> Iterator[ProfilingPool]:
    """What was evaluated once is known to it, so each file of these tests is evaluated once."""
    with (
        Referee.start(cache=home, protocol=Protocol(effort=SHORT)) as evaluator,
        ProfilingPool(evaluator, slots=1) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def data(pool: ProfilingPool) -> TaskData:
    return TaskData(task=TASK, language="cpp", target=pool.target, work=pool.work(TASK))


def grader(pool: ProfilingPool) -> Grader:
    return Grader(pool, SCHEMES["log-speedup"], effort=SHORT, again=AGAIN)


def reply(source: str) -> str:
    return f"```python\n{source}```"


def test_a_rollout_of_three_turns(pool: ProfilingPool, data: TaskData) -> None:
    rollout = Rollout(data, grader(pool), turns=3)
    uncompiled = rollout.take(reply(BROKEN))
    assert uncompiled.outcome.verdict is Verdict.build_error
    assert "tangh" in rollout.messages[-1].content.rpartition("Result: build_error")[2]
    wrong = rollout.take(reply(WRONG))
    assert wrong.outcome.verdict is Verdict.wrong_output
    right = rollout.take(reply(RIGHT))
    assert right.outcome.kind == "correct"
    low = right.outcome.low("eager")
    assert low is not None
    assert rollout.trajectory().rewards == (0.0, 0.0, pytest.approx(0.3 + max(0.0, math.log(low))))


def test_the_winner_scores_full_marks_and_the_reference_nothing(pool: ProfilingPool, data: TaskData) -> None:
    made = grader(pool)
    winner = Candidate(source=RIGHT, language="cpp", author="file")
    stored = Interval(median=0.1, low=0.1, high=0.1)  # which it surely is
    golden = data.model_copy(update={"winner": WinningKernel(candidate=winner, speedup=stored)})
    found = gold_check(made, golden)
    assert found.problems == ()
    assert found.winner_reward is not None and found.winner_reward >= 0.3
    # As it stands, renamed, and with a kernel in a string: the last is right, and timed, and has no kernel.
    assert found.reference_rewards == {"as it stands": 0.0, "renamed": 0.0, "disguised": 0.0}
    assert found.nothing == 0.0


def test_the_suite_s_tasks_are_environments(pool: ProfilingPool) -> None:
    task = builtin_task("level1/relu")
    shown = Rollout(
        TaskData(task=task, language="cpp", target=pool.target, work=pool.work(task)), grader(pool)
    ).messages
    assert "A call must read and write 67.11 MB at least" in shown[-1].content
