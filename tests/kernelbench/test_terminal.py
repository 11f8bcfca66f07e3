"""Output of `kernelwright evaluate` for a task of several sizes."""

import pytest

from kernelwright.kernelbench.evaluator.workloads import combined
from kernelwright.kernelbench.records import Size, Verdict
from kernelwright.kernelbench.terminal import show
from tests.helpers.results.run_factory import candidate, evaluation, task

SIZES = tuple(
    Size(constants={"batch_size": batch, "sequence_length": length}, weight=weight, hidden=hidden)
    for batch, length, weight, hidden in (("64", "1024", 9.0, False), ("8", "4096", 0.5, True))
)
TASK = task("softmax").model_copy(update={"workload": SIZES})
RIGHT = evaluation(TASK, candidate(1), eager=4.0)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_times_and_speedups_are_shown_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    show(combined(TASK, [RIGHT, RIGHT]))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "numerics" not in line) <= 80
    row = next(line for line in lines if line.startswith("  batch_size=64,"))
    assert "0.025 ms" in row and "0.100 ms" in row and "4.000 x [3.920, 4.080]" in row
    assert any("0.5" in line.split() for line in lines) and any("(hidden)" in line for line in lines)
    assert "correct  24 inputs within the error budget at all 2 sizes" in lines


def test_why_it_fails_at_a_hidden_size_is_for_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = evaluation(TASK, candidate(1), Verdict.wrong_output, reason="3 of (8, 4096) elements differ")
    show(combined(TASK, [RIGHT, wrong]))
    out = capsys.readouterr().out
    assert "wrong output at a hidden size" in out.splitlines()[0]
    assert "at batch_size=8, sequence_length=4096: 3 of (8, 4096) elements differ" in out
