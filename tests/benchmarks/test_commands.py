"""Each benchmark says how to run it, and each published table names a benchmark that makes it."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.__main__ import OTHERS, WITHOUT_CHECKOUT, name_of

ROOT = Path(__file__).parents[2]
BENCHMARKS = (*WITHOUT_CHECKOUT, *OTHERS)
PUBLISHED = sorted((ROOT / "results" / "published").rglob("*.md"))


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=name_of)
def test_a_benchmark_says_its_command_machine_time_and_file(benchmark: ModuleType) -> None:
    text = " ".join((benchmark.__doc__ or "").split())
    assert f"python -m benchmarks {name_of(benchmark)}" in text
    assert re.search(
        r" Machine: .*\. Time: .*\. Writes ((cpu|static|kernels|models|audits)/\S+\.\w+|cpu/\S+)", text
    ), text


def test_every_module_is_a_command_or_serves_one() -> None:
    folders = ("evaluator", "compiler", "agent", "export", "checks")
    modules = {path.stem for folder in folders for path in (ROOT / "benchmarks" / folder).glob("*.py")}
    helpers = {"__init__", "accuracy", "naive_timer", "slow_build", "schedules", "strategies", "stand_ins"}
    helpers |= {"faulty_model", "killed_runs", "run_audit", "brief_timing", "judging", "mutants", "published"}
    helpers |= {"static_call", "verified"}
    assert modules - helpers == {name_of(benchmark).replace("-", "_") for benchmark in BENCHMARKS}


def test_published_tables_are_made_by_benchmarks() -> None:
    names = {name_of(benchmark) for benchmark in BENCHMARKS}
    made = {
        path.name: re.findall(r"Made by `python -m benchmarks (\S+?)[ `]", path.read_text())
        for path in PUBLISHED
    }
    assert len([name for name, commands in made.items() if commands]) > 20
    assert {command for commands in made.values() for command in commands} <= names


def test_published_tables_hold_no_goals() -> None:
    tables = [path for path in PUBLISHED if "Made by `python -m benchmarks" in path.read_text()]
    assert not [path.name for path in tables if re.search(r"\bgoals?\b", path.read_text())]
