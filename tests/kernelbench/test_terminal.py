"""Output of `kernelwright evaluate`: the score, and a task of several sizes."""

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


@pytest.mark.parametrize(
    ("eager", "floor", "said"),
    [
        (4.0, 20.0, "0.94; at most 1.25 times faster is left (floor 0.020 ms)"),  # 80 / (80 + 5)
        (4.0, 30.0, "none: 1.20 times faster than the floor, so a ceiling is wrong or less was computed"),
        (0.5, 100.0, "none, for eager is at the floor; at most 2.00 times faster is left (floor 0.100 ms)"),
        (4.0, None, "not known: a ceiling of this machine was not measured"),
    ],
)
def test_the_score_stands_below_the_speedups(
    capsys: pytest.CaptureFixture[str], eager: float, floor: float | None, said: str
) -> None:
    show(evaluation(task("softmax"), candidate(1), eager=eager, floor=floor))
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("  SOL score "))
    assert line.startswith(f"  SOL score      {said}")
    assert any(other.startswith("  vs the fastest") for other in lines[: lines.index(line)])


def test_what_is_not_correct_has_no_score(capsys: pytest.CaptureFixture[str]) -> None:
    show(evaluation(task("softmax"), candidate(1), Verdict.implausible, eager=4.0, floor=20.0))
    assert "SOL" not in capsys.readouterr().out


def test_each_size_has_a_score_and_that_of_all_is_by_their_mean_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sizes of 25 and 50 µs, with floors of 20 and 30: 9.5 calls take 250 µs, at least 195 and in eager 950."""
    each = [evaluation(TASK, candidate(1), eager=over, floor=us) for over, us in ((4.0, 20.0), (2.0, 30.0))]
    show(combined(TASK, each))
    out = capsys.readouterr().out
    assert "SOL score      0.93; at most 1.28 times faster is left (floor 0.021 ms)" in out  # 755 / 810
    assert max(len(line) for line in out.splitlines()[1:] if "numerics" not in line) <= 80
    scores = [cell for line in out.splitlines() for cell in line.split() if cell in ("0.94", "0.78")]
    assert scores == ["0.94", "0.78"]  # 80 / 85, 70 / 90
