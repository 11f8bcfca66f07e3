"""The demo says in a few lines what was optimized, how fast it is, and how to go on."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.agent.demo import lines
from kernelwright.kernelbench.records import Verdict
from tests.helpers.results import run_factory


def told(eager: float | None, verdict: Verdict = Verdict.correct, reason: str = "9 inputs") -> list[str]:
    task, candidate = run_factory.task("rms_norm"), run_factory.candidate(1)
    evaluation = run_factory.evaluation(task, candidate, verdict, eager, reason=reason)
    return lines(task, candidate, evaluation, Path("kernel.py"))


def test_it_says_what_was_optimized_how_fast_it_is_and_how_to_go_on() -> None:
    assert told(4.0) == [
        "Task      builtin:level1/rms_norm",
        "Verdict   correct: 9 inputs",
        "Speedup   4.00× [3.92, 4.08] over eager PyTorch",
        "Kernel    kernel.py, cpp by the builtin coder",
        "Next      kernelwright run builtin:level1/softmax, or a file with a task of your own",
    ]


def test_without_a_speedup_it_claims_none() -> None:
    said = told(None, Verdict.build_error, "no such header")
    assert said[1] == "Verdict   build_error: no such header"
    assert not any("Speedup" in line for line in said)


@pytest.mark.slow
def test_the_command(tmp_path: Path, home: Path) -> None:
    command = [sys.executable, "-m", "kernelwright", "demo", "--out", str(tmp_path / "kernel.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "class ModelNew" in (tmp_path / "kernel.py").read_text()
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "Task", "Verdict", "Speedup", "Kernel", "Next"
    ]  # fmt: skip
