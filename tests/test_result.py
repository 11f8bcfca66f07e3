"""Printed form of the result of `kernelwright.optimize`."""

from pathlib import Path

from torch import nn

from kernelwright.result import Result
from tests.helpers.results.run_factory import candidate, evaluation, task


def test_the_score_stands_below_the_speedup() -> None:
    """The kernel takes 25 µs, eager 100 and the floor 20: 80 / (80 + 5)."""
    found = evaluation(task("softmax"), candidate(1), eager=4.0, floor=20.0)
    result = Result(
        module=nn.Identity(),
        faster=True,
        reason="computed by a kernel",
        evaluation=found,
        kernel="",
        task="module:softmax",
        task_source="",
        layer="",
        folder=Path("run"),
    )
    lines = str(result).splitlines()
    assert "Speedup   4.00× [3.92, 4.08] over eager" in lines
    assert "SOL score 0.94; at most 1.25 times faster is left" in lines
