"""Trainings in reports: the numbers that were logged, what they were logged of, and curves of them."""

import csv
import json
import math
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kernelwright.kernelbench.errors import StorageError
from kernelwright.results import cli as results_cli
from kernelwright.results.report.curves import BOTTOM, LEFT, RIGHT, TOP, curve, ticks
from kernelwright.results.report.formats import TEXTS, ReportFormat
from kernelwright.results.report.training import curves, page, render
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.training import Manifest, Point, Start, Training
from tests.helpers.results.page import Page
from tests.helpers.results.run_factory import TARGET

NAN = math.nan


def training(
    folder: Path, points: list[tuple[int, dict[str, float]]], resumed_at: tuple[int, ...] = ()
) -> Training:
    manifest = Manifest(
        method="grpo",
        config={"learning_rate": 1e-5, "model": "<b>small</b>"},
        seeds={"training": 7},
        data={"train.parquet": "ab" * 32},
        command="kernelwright train rl --seed 7",
        started="2026-11-25T01:02:03+00:00",
        kernelwright="0.1.0",
        commit=None,
        packages={"torch": "2.13.0", "trl": "1.16.0"},
        machine=TARGET.fingerprint,
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    starts = [
        Start(started="2026-11-25T01:02:03+00:00", step=step, command=manifest.command, kernelwright="0.1.0",
              commit="c0ffee", machine=TARGET.fingerprint)
        for step in (0, *resumed_at)
    ]  # fmt: skip
    (folder / "starts.jsonl").write_text("".join(f"{record_text(start)}\n" for start in starts))
    lines = [record_text(Point(step=step, time="2026-11-25T01:02:04+00:00", values=v)) for step, v in points]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Training.read(folder)


LOGGED = [
    (1, {"loss": 2.0, "reward": 0.1, "epoch": 0.1}),
    (2, {"loss": 1.5, "reward": 0.2, "epoch": 0.2}),
    (3, {"loss": 9.9, "reward": 0.9, "epoch": 0.3}),  # which a resume from 2 goes through again
    (3, {"loss": 1.25, "reward": 0.4, "epoch": 0.3}),
    (4, {"loss": NAN, "reward": 0.3, "epoch": 0.4}),
    (4, {"train_runtime": 12.0}),
]


def test_each_step_counts_once(tmp_path: Path) -> None:
    found = training(tmp_path, LOGGED, resumed_at=(2,))
    assert found.series("reward") == [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.3)]
    back = [*LOGGED, (2, {"reward": 0.6}), (3, {"reward": 0.7})]
    assert training(tmp_path, back).series("reward") == [(1, 0.1), (2, 0.6), (3, 0.7)]


@pytest.mark.parametrize("format", [ReportFormat.table, ReportFormat.md])
def test_tables_have_first_and_last_values_settings_and_the_command(
    tmp_path: Path, format: ReportFormat
) -> None:
    shown = render(training(tmp_path, LOGGED, resumed_at=(2,)), format)
    (reward,) = [line.replace("|", " ").split() for line in shown.splitlines() if "reward" in line]
    assert reward == ["reward", "0.1", "0.3", "0.1", "0.4", "4"]
    (loss,) = [line.replace("|", " ").split() for line in shown.splitlines() if "loss" in line]
    assert loss == ["loss", "2", "nan", "1.25", "2", "4"]
    for words in (
        "4 steps",
        "learning_rate",
        "1e-05",
        "kernelwright train rl --seed 7",
        "trl 1.16.0",
        "c0ffee",
    ):
        assert words in shown


def test_csv_has_a_line_a_step_and_json_all_of_it(tmp_path: Path) -> None:
    found = training(tmp_path, LOGGED)
    rows = list(csv.DictReader(render(found, ReportFormat.csv).splitlines()))
    assert [row["reward"] for row in rows] == ["0.1", "0.2", "0.4", "0.3"]
    assert [row["train_runtime"] for row in rows] == ["", "", "", "12.0"]
    told = json.loads(render(found, ReportFormat.json))
    assert told["manifest"]["seeds"] == {"training": 7}
    assert told["points"][3]["values"] == {"loss": None, "reward": 0.3, "epoch": 0.4, "train_runtime": 12.0}
    assert len(told["starts"]) == 1


def test_the_page_draws_reward_first_and_escapes(tmp_path: Path) -> None:
    found = training(tmp_path, LOGGED)
    html = page(found)
    read = Page(html)
    labels = [a["aria-label"] for tag, a in read.tags if tag == "svg"]
    assert labels == ["reward over steps, 0.3 at the end", "loss over steps, nan at the end"]
    assert "&lt;b&gt;small" in html and "<b>small" not in html
    assert "http" not in html and "<script" not in html


def test_a_training_without_numbers_has_a_report(tmp_path: Path) -> None:
    found = training(tmp_path, [])
    for format in TEXTS:
        assert render(found, format).endswith("\n") or format is ReportFormat.html
    assert "nothing has been logged yet" in page(found)
    assert curves(found) == []


def test_curves_run_from_edge_to_edge_and_have_gaps_where_there_is_no_number() -> None:
    drawn = curve("reward", [(10, 0.0), (15, 1.0), (20, NAN), (30, 0.5), (40, 0.25)])
    assert drawn is not None
    assert drawn.path.count("M") == 2
    xs = [x for x, _, _ in drawn.marks]
    assert xs == pytest.approx(
        [LEFT, LEFT + (RIGHT - LEFT) / 6, LEFT + (RIGHT - LEFT) * 2 / 3, RIGHT], abs=0.1
    )
    ys = [y for _, y, _ in drawn.marks]
    assert TOP < ys[1] < ys[2] < ys[3] < ys[0] < BOTTOM
    assert [label for _, label in drawn.y_ticks] == ["0", "0.5", "1"]
    assert [label for _, label in drawn.x_ticks] == ["10", "15", "20", "25", "30", "35", "40"]


@pytest.mark.parametrize(
    "series", [[(1, 3.0)], [(1, 0.0), (2, 0.0)], [(5, -2.0), (6, -2.0)], [(1, 1e-9), (2, 2e9)]]
)
def test_curves_of_one_value_and_of_wide_ranges_are_drawn(series: list[tuple[int, float]]) -> None:
    drawn = curve("x", series)
    assert drawn is not None and drawn.y_ticks
    assert all(TOP <= y <= BOTTOM and LEFT <= x <= RIGHT for x, y, _ in drawn.marks)
    assert curve("x", [(1, NAN)]) is None


def test_ticks_are_round() -> None:
    assert ticks(0, 1, 4) == [0, 0.5, 1.0]
    assert ticks(-3, 37, 6) == [0, 10, 20, 30]
    assert ticks(0.00012, 0.00031, 4) == [0.00015, 0.0002, 0.00025, 0.0003]


def test_report_shows_a_training(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(results_cli.report)
    training(tmp_path, LOGGED)
    shown = CliRunner().invoke(app, [str(tmp_path)])
    assert shown.exit_code == 0 and "grpo" in shown.output and "4 steps" in shown.output
    file = tmp_path / "report.html"
    assert CliRunner().invoke(app, [str(tmp_path), "--format", "html", "--output", str(file)]).exit_code == 0
    assert file.read_text().startswith("<!doctype html>") or "<!doctype html>" in file.read_text()
    (tmp_path / "manifest.json").write_text("{}")
    failed = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(failed.exception, StorageError)
