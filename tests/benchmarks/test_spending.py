"""The simulation of spending: real scheduler and budget, the same again with the same seed."""

from random import Random

import pytest

from benchmarks.agent import spending
from benchmarks.agent.stand_ins import Nature
from kernelwright.kernelbench.records import Task

SOURCE = "class Model:\n    def forward(self, x):\n        return torch.{}(x)\n"
TASKS = [
    Task(id=f"t:{level}/{number}", level=level, source=SOURCE.format(operator))
    for level in (1, 2, 3)
    for number, operator in enumerate(("matmul", "softmax", "relu", "cumsum"))
]
ONE_CALL_USD = 0.4  # of a file, at most, as 32768 tokens are


def begun(breadth_first: bool) -> spending.Spending:
    options = {"max_usd": 2.4, "rounds": 10, "all_tasks": True, "tasks_at_once": 2}
    return spending.simulated(TASKS, breadth_first, options, seed=1)


def test_the_same_budget_begins_all_tasks_or_searches_the_first_ones_to_their_end() -> None:
    broad, deep = begun(True), begun(False)
    assert sum(broad.begun.values()) == 12 > sum(deep.begun.values())
    assert deep.begun[3] == 0
    assert all(2.4 <= found.usd < 2.4 + ONE_CALL_USD for found in (broad, deep))
    assert begun(True) == broad


def test_a_level_1_product_leaves_less_to_gain_than_a_fusion() -> None:
    shares = {task.id: [Nature.of(task, seed).share for seed in range(50)] for task in TASKS}
    assert min(shares["t:1/0"]) >= 0.55 and max(shares["t:2/0"]) <= 0.6
    assert all(Nature.of(task, 0).reach >= 0 for task in TASKS)


@pytest.mark.parametrize("best", [None, 0.1])
def test_some_rounds_fail_and_no_kernel_is_beyond_its_reach(best: float | None) -> None:
    nature = Nature(share=0.25, reach=1.0, correct=0.6, slower=0.4)
    speeds = [nature.speed(best, Random(number)) for number in range(400)]
    known = [speed for speed in speeds if speed is not None]
    assert 0.5 < len(known) / len(speeds) < 0.7 and max(known) <= 1.0
