"""`kernelwright train curate`, as it is typed."""

import json
import sys
from pathlib import Path

import pytest

from kernelwright import cli
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel, made, tried


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with run_factory.new_run(tmp_path / "run") as database:
        for name in ("level1/relu", "level1/softmax", "level1/sum_rows"):
            task = builtin_task(name)
            database.add_task(task)
            for number, expression in enumerate(EXPRESSIONS):
                tried(database, task, made(kernel(expression)), 1.5 + number)
    return tmp_path / "run"


def typed(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["kernelwright", "train", "curate", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_it_prints_one_json_object(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "evaluation.txt"
    names.write_text("builtin:level1/softmax\n")
    words = (
        run,
        "--out",
        tmp_path / "data",
        "--k",
        1,
        "--evaluation-list",
        names,
        "--compare",
        "text",
        "--json",
    )
    assert typed(monkeypatch, *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["rows"]["sft"] == {"train": 1, "test": 1}
    assert told["contaminated"] == {"builtin:level1/softmax": "builtin:level1/softmax"}
    assert {*told["files"], "README.md", "DATASHEET.md"} == {
        str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").rglob("*.*")
    }


@pytest.mark.slow
def test_tasks_are_compared_by_what_they_compute(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    softmax = builtin_task("level1/softmax").source.replace("torch.softmax(x, dim=-1)", "x.softmax(1)")
    other = tmp_path / "in_other_words.py"
    other.write_text(softmax)
    names = tmp_path / "evaluation.txt"
    names.write_text(f"{other}\n")
    assert typed(monkeypatch, run, "--out", tmp_path / "data", "--evaluation-list", names, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["contaminated"] == {"builtin:level1/softmax": "file:in_other_words"}


def test_it_says_what_was_left_out_and_that_nothing_was_checked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(monkeypatch, run, "--out", tmp_path / "data", "--compare", "text") == 0
    said = capsys.readouterr().out
    assert "3 left out: its task has 2 faster ones" in said
    assert "contamination was not checked" in said


def test_a_run_without_correct_kernels_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_factory.new_run(tmp_path / "run").close()
    assert typed(monkeypatch, tmp_path / "run", "--out", tmp_path / "data") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: this run has no correct kernel of its own to learn from — give a run")
    assert not (tmp_path / "data").exists()
