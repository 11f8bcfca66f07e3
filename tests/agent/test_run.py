"""A run from the command line: results as it goes, nothing lost by kill -9, one run a folder."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

TASK = """
import torch
from torch import nn

rows = 512

class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2.0 + x

def get_inputs():
    return [torch.randn(rows, 1024)]

def get_init_inputs():
    return []
"""

QUICK = ("--quick", "--baseline", "eager")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "tanh.py"
    path.write_text(TASK)
    return path


def command(home: Path, *arguments: object) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "kernelwright", *map(str, arguments)], {
        **os.environ,
        "KERNELWRIGHT_HOME": str(home),
    }


def run(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    words, environment = command(home, *arguments)
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=280)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "home"


def attempts(out: Path) -> list[tuple[int, str]] | None:
    """(id, candidate) of every recorded attempt; None while there is no run yet."""
    try:
        with sqlite3.connect(f"file:{out / 'run.db'}?mode=ro", uri=True, timeout=10) as database:
            return database.execute("select id, candidate_sha256 from attempts order by id").fetchall()
    except sqlite3.OperationalError:
        return None


@pytest.mark.slow
def test_a_run_writes_its_results_and_goes_on_after_a_task_that_fails(
    task: Path, tmp_path: Path, home: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(TASK.replace("torch.randn(rows, 1024)", "torch.randn(rows, 'x')"))
    out = tmp_path / "out"
    done = run(home, "run", broken, task, "--rounds", 1, "--set", "rows=256", *QUICK, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert json.loads((out / "summary.json").read_text()) == summary
    first, second = summary["tasks"]
    assert first["verdict"] is None and "the task fails" in first["stop_reason"]
    assert second["verdict"] == "correct" and set(second["speedup"]) == {
        "eager",
        "compile",
        "max_autotune",
        "fastest",
    }
    assert summary["correct"] == 1 and summary["usd"] == 0.0
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    best = (out / "best" / "file_tanh.py").read_text()
    assert "class ModelNew" in best and "256" in best

    again = run(home, "run", task, "--out", out)
    assert again.returncode == 2
    assert "--resume" in again.stderr and len(again.stderr.strip().splitlines()) == 1

    reported = run(home, "report", out, "--format", "json")
    assert json.loads(reported.stdout)["correct"] == 1


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_and_loses_nothing(task: Path, tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out"
    words, environment = command(home, "run", task, "--rounds", 2, *QUICK, "--out", out)
    kept: list[tuple[int, str]] = []
    for enough in (0, 1):
        process = subprocess.Popen(
            words, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while (found := attempts(out)) is None or len(found) < enough:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = attempts(out)
        assert found is not None and found[: len(kept)] == kept and len(found) >= enough
        kept = found
        words, environment = command(home, "run", "--resume", out)
    done = run(home, "run", "--resume", out, "--json")
    assert done.returncode == 0, done.stderr
    found = attempts(out)
    assert found is not None and found[: len(kept)] == kept
    (summary,) = json.loads(done.stdout)["tasks"]
    assert summary["verdict"] == "correct" and summary["rounds"] <= 2


def test_a_second_run_in_a_folder_in_use_is_refused(task: Path, tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out"
    words, environment = command(home, "run", task, "--out", out)
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (out / "run.db").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        refused = run(home, "run", "--resume", out)
    finally:
        process.kill()
        process.wait()
    assert refused.returncode == 2
    assert str(process.pid) in refused.stderr
