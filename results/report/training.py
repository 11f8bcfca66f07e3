"""Report of a training as a terminal table, Markdown, CSV, JSON, or a page with curves."""

import csv
import io
import math
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelwright.kernelbench.records import Record
from kernelwright.results.report.curves import Curve, curve, number
from kernelwright.results.report.formats import (
    TABLE_WIDTH,
    ReportFormat,
    markdown_table,
    no_text,
    plain_table,
)
from kernelwright.results.report.tables import ReportTable
from kernelwright.results.store.training import Manifest, Point, Start, Training

MOST_CURVES = 12
# What is looked at first; the rest follows as it came.
FIRST = ("reward", "valid_fraction", "loss", "eval_reward", "eval_loss")
_NOT_DRAWN = frozenset(("epoch", "total_flos", "num_tokens", "num_input_tokens_seen"))
_NUMBERS = ("Logged values", "Steps repeated after a resume count once.")
_STARTS = ("Starts", "Each resumed from the last complete checkpoint.")


class JsonTraining(Record):
    """Output of `report --format json`. NaNs are null."""

    schema_version: int = 1
    manifest: Manifest
    starts: tuple[Start, ...]
    points: tuple[Point, ...]


def render(training: Training, format: ReportFormat) -> str:
    """Render the report as text that ends with a newline. Raises UsageError for a format of folders."""
    match format:
        case ReportFormat.table:
            console = Console(file=io.StringIO(), width=TABLE_WIDTH)
            console.print(table(training))
            assert isinstance(console.file, io.StringIO)
            return console.file.getvalue()
        case ReportFormat.md:
            return _markdown(training)
        case ReportFormat.csv:
            return _csv(training)
        case ReportFormat.json:
            told = JsonTraining(manifest=training.manifest, starts=training.starts, points=training.points)
            return told.model_dump_json(indent=2) + "\n"
        case ReportFormat.html:
            return page(training)
        case ReportFormat.kernelbench:
            raise no_text(format)


def table(training: Training) -> Group:
    """Return the report for a terminal."""
    parts: list[RenderableType] = [Text(headline(training)), Text()]
    for each in tables(training):
        parts += [plain_table(each), Text(each.note, style="dim"), Text()]
    for title, lines in (("settings", settings(training)), ("environment", conditions(training))):
        drawn = Table(box=None, show_header=False, title=title, title_justify="left")
        for name, value in lines:
            drawn.add_row(Text(name, style="dim"), Text(value))
        parts += [drawn, Text()]
    return Group(*parts)


def page(training: Training) -> str:
    """Render the whole page, self-contained."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("training.html.j2").render(
        headline=headline(training),
        manifest=training.manifest,
        curves=curves(training),
        tables=tables(training),
        settings=settings(training),
        conditions=conditions(training),
    )


def headline(training: Training) -> str:
    name = f"{training.manifest.method}, {training.folder.resolve().name}"
    if not training.points:
        return f"{name}: nothing has been logged yet"
    return f"{name}: {training.points[-1].step} steps"


def curves(training: Training) -> list[Curve]:
    """Return the curves of series logged at more than one step, the important ones first."""
    named = [name for name in FIRST if name in training.names]
    named += [name for name in training.names if name not in FIRST and name not in _NOT_DRAWN]
    several = (name for name in named if len(training.series(name)) > 1)
    drawn = (curve(name, training.series(name)) for name in several)
    return [found for found in drawn if found is not None][:MOST_CURVES]


def tables(training: Training) -> list[ReportTable]:
    rows: list[tuple[str, ...]] = []
    for name in training.names:
        values = [value for _, value in training.series(name)]
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        rows.append((name, *map(number, (values[0], values[-1], min(finite), max(finite))), str(len(values))))
    found = [ReportTable(*_NUMBERS, ("", "first", "last", "least", "most", "steps"), rows)] if rows else []
    starts: list[tuple[str, ...]] = [
        (start.started, str(start.step), start.commit or start.kernelwright, start.command)
        for start in training.starts
    ]
    if len(starts) > 1:
        found.append(ReportTable(*_STARTS, ("started", "from step", "code", "command"), starts))
    return found


def settings(training: Training) -> list[tuple[str, str]]:
    manifest = training.manifest
    lines = [(name, str(value)) for name, value in manifest.config.items()]
    return [*lines, *((f"seed, {name}", str(seed)) for name, seed in manifest.seeds.items())]


def conditions(training: Training) -> list[tuple[str, str]]:
    """Return the machine, the versions and the command that reproduces the training."""
    manifest, machine = training.manifest, training.manifest.machine
    lines = [
        ("started", manifest.started),
        ("machine", f"{machine.chip}, {machine.threads} threads, {machine.system}"),
        ("kernelwright", manifest.kernelwright + (f", {manifest.commit}" if manifest.commit else "")),
        ("packages", ", ".join(f"{name} {version}" for name, version in manifest.packages.items())),
        *((f"sha256 of {name}", sha256) for name, sha256 in manifest.data.items()),
    ]
    others = sum(start.machine != machine for start in training.starts)
    if others:
        lines.append(("attention", f"{others} starts were on another machine or toolchain"))
    return [*lines, ("reproduce", manifest.command)]


def _markdown(training: Training) -> str:
    lines = [f"# {headline(training)}"]
    for each in tables(training):
        lines += ["", f"## {each.title}", "", each.note, "", *markdown_table(each.header, each.rows)]
    lines += ["", "## Settings", "", *markdown_table(("", ""), settings(training))]
    lines += ["", "## Environment", "", *markdown_table(("", ""), conditions(training))]
    return "\n".join(lines) + "\n"


def _csv(training: Training) -> str:
    """Return one line per step; values not logged there are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "time", *training.names])
    for point in training.points:
        writer.writerow([point.step, point.time, *(point.values.get(name) for name in training.names)])
    return out.getvalue()
