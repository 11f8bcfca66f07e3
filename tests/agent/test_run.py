"""A run from the command line: results as it goes, nothing lost by kill -9, one run a folder."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.loop import TaskLoop
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.recorder import Stopped
from kernelwright.agent.run import Run
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import Task
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET

pytestmark = [pytest.mark.builds, pytest.mark.timeout(900)]  # whole runs, beside other tests

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

QUICK = ("--effort", "quick", "--baseline", "eager")


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
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=580)


def attempts(out: Path) -> list[tuple[int, str]] | None:
    """(id, verdict) of every recorded attempt; None while there is no run yet."""
    try:
        with sqlite3.connect(f"file:{out / 'run.db'}?mode=ro", uri=True, timeout=10) as database:
            return database.execute("select attempt, verdict from evaluations order by attempt").fetchall()
    except sqlite3.OperationalError:
        return None


@pytest.mark.slow
def test_triton_kernels_are_verified_where_nothing_can_time_them(
    task: Path, tmp_path: Path, home: Path
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    words = ("--language", "triton", "--set", "rows=16", "--out", tmp_path / "out", "--json")
    done = run(home, "run", task, *words)
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["tasks"]
    assert found["verdict"] == "unmeasured" and "need a GPU" in found["stop_reason"]
    assert found["rounds"] == 1 and not found["speedup"]


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"language": ("torch",)}, "choose cpp, triton or cuda"),
        ({"target": "cuda:0", "language": ("cpp",)}, "choose triton, cuda"),
        ({"search": "beam"}, "choose refine or exhaustive"),
        ({"hold": ("fuse", "lanes")}, "lanes is no knob . the builtin coder's knobs are kernels, fuse"),
    ],
)
def test_what_the_builtin_coder_cannot_do_is_one_line(options: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        build(RunConfig, options).resolved().check()


@pytest.mark.slow
def test_a_run_ended_at_any_moment_resumes_and_loses_nothing(task: Path, tmp_path: Path, home: Path) -> None:
    """Killed when it has just begun, then interrupted with two lanes at work. One of its tasks fails."""
    broken, other = tmp_path / "broken.py", tmp_path / "sigmoid.py"
    broken.write_text(TASK.replace("torch.randn(rows, 1024)", "torch.randn(rows, 'x')"))
    other.write_text(TASK.replace("torch.tanh", "torch.sigmoid"))
    out = tmp_path / "out"
    words, environment = command(
        home, "run", broken, task, other, "--rounds", 1, "--set", "rows=256", *QUICK, "--out", out
    )
    kept: list[tuple[int, str]] = []
    for enough, how in ((0, signal.SIGKILL), (1, signal.SIGINT)):
        process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        deadline = time.monotonic() + 120
        while (found := attempts(out)) is None or len(found) < len(kept) + enough:
            assert process.poll() is None and time.monotonic() < deadline, (
                process.stderr and process.stderr.read()
            )
            time.sleep(0.02)
        os.killpg(process.pid, how)
        said = process.communicate(timeout=30)[1]
        if how == signal.SIGINT:
            assert process.returncode == 130 and f"run --resume {out}" in said and "Traceback" not in said, (
                said
            )
        found = attempts(out)
        assert found is not None and found[: len(kept)] == kept and len(found) >= enough
        kept = found
        words, environment = command(home, "run", "--resume", out, "--workers", 2)
    done = run(home, "run", "--resume", out, "--json")
    assert done.returncode == 0, done.stderr
    found = attempts(out)
    assert found is not None and found[: len(kept)] == kept
    assert all(verdict == "correct" for _, verdict in found)  # of none that was ended with the run
    summary = json.loads(done.stdout)
    assert json.loads((out / "summary.json").read_text()) == summary
    first, *others = summary["tasks"]
    assert first["verdict"] is None and "the task fails" in first["stop_reason"]
    assert [each["rounds"] for each in others] == [1, 1] and others[0]["verdict"] == "correct"
    assert set(others[0]["speedup"]) == {"eager", "compile", "max_autotune", "cuda_graphs", "fastest"}
    assert summary["correct"] == 2 and summary["usd"] == 0.0
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    best = (out / "best" / "file_tanh.py").read_text()
    assert "class ModelNew" in best and "256" in best

    again = run(home, "run", task, "--out", out)
    assert again.returncode == 2
    assert "--resume" in again.stderr and len(again.stderr.strip().splitlines()) == 1

    reported = run(home, "report", out, "--format", "json")
    assert json.loads(reported.stdout)["correct"] == 2


def test_settings_of_another_version_are_one_line(tmp_path: Path, home: Path) -> None:
    with RunDatabase.create(tmp_path / "run.db", settings={"speed": "ludicrous"}, target=TARGET):
        pass
    done = run(home, "run", "--resume", tmp_path)
    assert done.returncode == 2
    assert "are not those of this version" in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_run_of_the_surrogate_opens_goes_on_with_the_rules_and_is_reported(
    task: Path, tmp_path: Path, home: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    config = build(
        RunConfig, {"tasks": (str(task),), "rounds": 2, "effort": "quick", "baselines": ["eager"]}
    ).resolved()
    tuner = {"rank_by": "surrogate", "learn_from": [str(tmp_path / "gone")]}
    tasks = config.tasks.resolve("cpu")
    with RunDatabase.create(
        out / "run.db", settings={**config.record(), "tuner": tuner}, target=TARGET, tasks=tasks
    ) as database:
        ranking = {"1 ranking 0123abcd": ("1.0", "1.1")}
        database.record_lessons(tasks[0].id, ranking)
    done = run(home, "run", "--resume", out, "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["tasks"]
    assert found["verdict"] == "correct" and found["rounds"] == 2
    with RunDatabase.open(out, read_only=True) as database:
        second = database.attempts(tasks[0].id)[1]
        assert second.advice is not None and second.advice.schedule
        assert "surrogate" not in json.dumps(database.settings)
    assert "<!doctype html>" in (out / "report.html").read_text()


class Endless:
    """Stands for a pool that evaluates until it is told to end."""

    def __init__(self) -> None:
        self.aborted, self.timing_lock = threading.Event(), TimingLock()

    def audit(self, task: Task) -> list[str]:
        return []

    def abort(self) -> None:
        self.aborted.set()


def test_what_one_task_raises_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Task] = []

    def advance(self: TaskLoop, task: Task, tried: object, most: int | None) -> str | None:
        taken.append(task)
        if task.id == "file:b":
            raise StorageError("no space left", "free some")
        assert pool.aborted.wait(30) and run.stopped.is_set()
        raise Stopped

    pool: Any = Endless()
    monkeypatch.setattr(TaskLoop, "advance", advance)
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as database:
        for name in "abcd":
            database.add_task(Task(id=f"file:{name}", level=1, source=""))
        run = Run(build(RunConfig, {"tasks_at_once": 2}), database, pool)
        with pytest.raises(StorageError, match="no space"):
            run.execute()
    assert {task.id for task in taken} == {"file:a", "file:b"}


@pytest.mark.slow
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
