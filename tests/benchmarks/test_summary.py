"""The summary of finished runs: when a task was nearly done, and what own kernels cover."""

from pathlib import Path

import pytest

from benchmarks.compiler import summary
from benchmarks.coverage import covered, section
from benchmarks.runs import baseline_options
from kernelwright.agent.builtin.coverage import Cost, Coverage
from kernelwright.kernelbench.records import (
    Candidate,
    Environment,
    Evaluation,
    Interval,
    Language,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
)
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return (x * 2).sum(dim=1)


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
TASK = Task(id="file:sum", level=1, source=SOURCE)


def candidate(name: str, language: Language = "cpp", author: str = "builtin", **schedule: str) -> Candidate:
    return Candidate(source=name, language=language, author=author, schedule=schedule)


def record(
    database: RunDatabase,
    task: Task,
    tried: Candidate,
    speedup: float,
    seconds: float,
    confirms: bool = False,
    timing: Timing | None = None,
) -> None:
    """An attempt of this speedup over eager, 0 for one that is wrong, whose evaluation took so long."""
    right = speedup > 0
    eager = Interval(median=speedup, low=speedup, high=speedup)
    evaluation = Evaluation(
        task=task.id,
        candidate=tried.sha256,
        target=TARGET,
        verdict=Verdict.correct if right else Verdict.wrong_output,
        reason="",
        timing=timing,
        speedup=Speedup(eager=eager, fastest=eager) if right else None,
        stages=Stages(total_s=seconds),
        environment=Environment(sandbox=()),
    )
    database.record_attempt(task.id, 0, tried, None, evaluation, None, confirms=confirms)


def run_of(folder: Path, *tasks: Task) -> RunDatabase:
    return RunDatabase.create(folder / "run.db", settings={}, target=TARGET, tasks=tasks)


def until_near(folder: Path, tried: list[tuple[str, float, float]], winner: str, again: float) -> float:
    with run_of(folder, TASK) as database:
        for name, speedup, seconds in tried:
            record(database, TASK, candidate(name, "torch"), speedup, seconds)
        record(database, TASK, candidate(winner, "torch"), again, 60.0, confirms=True)
        [outcome] = summary._outcomes(database)
    return outcome.seconds_until_near


@pytest.mark.parametrize(
    ("tried", "winner", "again", "seconds"),
    [
        ([("a", 2.0, 3.0)], "a", 2.0, 3.0),
        ([("a", 1.0, 3.0), ("b", 2.0, 4.0), ("c", 2.05, 5.0)], "c", 2.0, 7.0),  # 2.0 is within 5% of 2.05
        ([("a", 1.9, 3.0), ("b", 2.05, 4.0)], "b", 2.0, 7.0),  # 1.9 is not
        ([("a", 0.0, 3.0), ("b", 1.2, 4.0)], "b", 1.2, 7.0),  # the time of what was wrong counts
        ([("a", 3.0, 3.0), ("b", 2.0, 4.0)], "b", 2.0, 3.0),  # a did not stand its second measurement
        ([("a", 2.0, 3.0)], "a", 9.0, 3.0),  # the last measurement is another kind of measurement
    ],
)
def test_the_time_until_a_task_was_nearly_done(
    tmp_path: Path, tried: list[tuple[str, float, float]], winner: str, again: float, seconds: float
) -> None:
    assert until_near(tmp_path, tried, winner, again) == seconds


@pytest.mark.slow
def test_what_own_kernels_cover_is_known_from_the_run_alone(tmp_path: Path) -> None:
    """The recorded schedule counts: kernels apart read what they hand each other."""
    names = ("together", "apart", "reference", "model")
    tasks = [TASK.model_copy(update={"id": f"file:{name}"}) for name in names]
    winners = [
        candidate("kernel"),
        candidate("kernels", fuse="apart"),
        candidate("reference", "torch", kernels="none"),
        candidate("of a model", author="llm:m"),
    ]
    with run_of(tmp_path, *tasks, TASK) as database:
        for task, winner in zip(tasks, winners, strict=True):
            record(database, task, winner, 2.0, 1.0)
            record(database, task, winner, 2.0, 1.0, confirms=True)
        found = covered(database)
        outcomes = summary._outcomes(database)
    assert found == {
        "file:together": Coverage(Cost(bytes=4 * (128 + 8), flops=256), Cost()),
        "file:apart": Coverage(Cost(bytes=4 * (3 * 128 + 8), flops=256), Cost()),
        "file:reference": Coverage(Cost(), Cost()),  # submitted: nothing of it is ours
    }
    assert summary._covered(outcomes, 0) == summary._covered(outcomes, 1) == "67% (n=3)"


def test_a_chapter_has_a_line_for_each_task_and_their_mean() -> None:
    half = Coverage(own=Cost(bytes=3, flops=1), library=Cost(bytes=1, flops=3))
    lines = section({"file:a": half, "file:b": Coverage(Cost(), Cost())}).splitlines()
    assert lines[-3:] == ["| file:a | 75% | 25% |", "| file:b | 0% | 0% |", "| mean | 38% | 12% |"]


def test_a_chapter_without_tasks_has_no_mean() -> None:
    assert "mean" not in section({})


def test_a_task_counts_as_autotuned_where_the_code_is_the_same(tmp_path: Path) -> None:
    """One where max-autotune was timed, one where it is compile's code, one where it took too long."""
    interval = Interval(median=100.0, low=99.0, high=101.0)
    found = (
        {"max_autotune_us": interval},
        {"same_code": {"max-autotune": "compile"}},
        {"failed_baselines": {"max-autotune": "compiling took longer than 60 s"}},
    )
    tasks = [TASK.model_copy(update={"id": f"file:{number}"}) for number in range(len(found))]
    with run_of(tmp_path, *tasks) as database:
        for task, of_timing in zip(tasks, found, strict=True):
            timing = Timing(candidate_us=interval, calls_per_block=1, rounds=1, **of_timing)
            for confirms in (False, True):
                record(database, task, candidate("r", "torch"), 1.0, 1.0, confirms, timing)
        assert summary._autotuned(summary._outcomes(database)) == "1 + 1"


def test_what_winners_are_held_against_is_handed_on_to_the_run() -> None:
    assert baseline_options(None, 300.0) == []
    asked = baseline_options(["compile", "max-autotune"], 60.0)
    assert asked == ["--baseline", "compile", "--baseline", "max-autotune", "--compile-limit", "60"]
