"""A run as a terminal table, Markdown, CSV, JSON, or the page of results/report/page.py."""

import csv
import io
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import alternatives
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.report.contents import (
    AGGREGATE_COLUMNS,
    AGGREGATE_NOTE,
    COLUMNS,
    RunReport,
    aggregate_cells,
    aggregates,
    cells,
    cost,
    kinds,
)
from kernelwright.results.report.page import page
from kernelwright.results.report.tables import ReportTable
from kernelwright.results.store.records import RecordedRun
from kernelwright.results.summary import BASELINES, Summary, TaskSummary

TABLE_WIDTH = 180  # characters, where the terminal does not say
WIDE = 160  # characters, from which all columns of the tasks' table can be read
_CLOSE = (0, 0, 0, 1)  # padding of cells, for as many columns as 80 characters hold
LONGEST_NAME = 34  # characters of a task's id, before it is folded
STYLES = {"faster": "green", "slower": "red", "even": "dim", "none": "dim"}


class ReportFormat(StrEnum):
    table = "table"
    md = "md"
    html = "html"
    csv = "csv"
    json = "json"
    kernelbench = "kernelbench"  # a folder: results/archives/kernelbench_runs.py


TEXTS = tuple(format for format in ReportFormat if format is not ReportFormat.kernelbench)


class JsonReport(Summary):
    """Content of summary.json with the run it is from."""

    run: RecordedRun


def render(report: RunReport, format: ReportFormat) -> str:
    """Render the report as text that ends with a newline. Raises UsageError for a format of folders."""
    match format:
        case ReportFormat.table:
            console = Console(file=io.StringIO(), width=TABLE_WIDTH)
            console.print(table(report))
            assert isinstance(console.file, io.StringIO)
            return console.file.getvalue()
        case ReportFormat.md:
            return _markdown(report)
        case ReportFormat.csv:
            return _csv(report.summary)
        case ReportFormat.json:
            return JsonReport(**dict(report.summary), run=report.run).model_dump_json(indent=2) + "\n"
        case ReportFormat.html:
            return page(report)
        case ReportFormat.kernelbench:
            raise no_text(format)


def no_text(format: ReportFormat) -> UsageError:
    """Return the error for a format that is no text, where one is wanted."""
    return UsageError(f"the format {format} is a folder of a whole run", f"choose {alternatives(TEXTS)}")


def console() -> Console:
    """Return a console on standard output, as wide as the terminal, or TABLE_WIDTH if it is none."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=TABLE_WIDTH)


def show(report: RunReport) -> None:
    """Print the report for a terminal."""
    screen = console()
    screen.print(table(report, screen.width))


def table(report: RunReport, width: int = TABLE_WIDTH) -> Group:
    """Return the report for a terminal of `width` characters."""
    summary = report.summary
    parts: list[RenderableType] = [Text(summary.headline, style="bold"), Text()]
    parts += [*_tasks("tasks", summary.with_parts(summary.tasks), width), _aggregate_table(summary, width)]
    if width < WIDE and summary.counted.score:
        parts.append(Text(f"SOL, mean of all tasks: {aggregate_cells('', summary)[-1]}\n"))
    parts += [Text(AGGREGATE_NOTE, style="dim"), Text()]
    if summary.measures_nothing:
        apart = summary.with_parts(summary.measures_nothing)
        parts += _tasks("tasks that measure nothing (counted apart)", apart, width)
        parts += [Text(f"{task.task}: {task.measures_nothing_why}") for task in summary.measures_nothing]
    for each in report.tables():
        parts += [plain_table(each), Text(each.note, style="dim"), Text()]
    conditions = Table(box=None, show_header=False, title="environment", title_justify="left")
    for name, value in [*report.conditions(), ("cost", cost(summary)), ("reproduce", report.reproduction())]:
        conditions.add_row(Text(name, style="dim"), Text(value))
    return Group(*parts, Text(), conditions)


def _tasks(title: str, tasks: Sequence[TaskSummary], width: int) -> list[RenderableType]:
    return [_task_table(title, tasks, width)] if width >= WIDE else _narrow_task_table(title, tasks)


def _narrow_task_table(title: str, tasks: Sequence[TaskSummary]) -> list[RenderableType]:
    """Return the task table for 80 characters: the main columns, and below it the stop reasons."""
    suites = {task.task.partition(":")[0] for task in tasks}
    suite = f"{suites.pop()}:" if len(suites) == 1 else ""
    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=_CLOSE)
    for column in ("task", "vs eager", "vs fastest", "own", "SOL", "time"):
        numeric = column in ("own", "SOL", "time")
        drawn.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    stopped: dict[str, list[str]] = {}
    for task in tasks:
        whole, verdict, eager, _, fastest, own, score, time, _, reason = cells(task)
        name = whole.removeprefix(suite)
        stopped.setdefault(reason, []).append(name)
        over_eager, _, over_fastest = kinds(task)
        first = Text(eager, STYLES[over_eager])
        if task.verdict != Verdict.correct:
            first = Text(verdict, "red")
        numbers = map(Text, (own, score, time))
        drawn.add_row(Text(name), first, Text(fastest, STYLES[over_fastest]), *numbers)
    reasons = (Text(f"{reason}: {', '.join(names)}", "dim") for reason, names in stopped.items())
    return [drawn, *reasons, Text()]


def _task_table(title: str, tasks: Sequence[TaskSummary], width: int) -> Table:
    between = (0, 1) if width >= TABLE_WIDTH else _CLOSE
    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=between)
    for column in COLUMNS:
        numeric = column in ("own", "SOL", "time", "rounds")
        whole = column not in ("verdict", "stop reason")  # of the others none is wrapped to make room
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for task in tasks:
        name, *others = cells(task)
        texts = [Text(cell) for cell in (_folded(name), *others)]
        texts[1].style = "green" if task.verdict == Verdict.correct else "red"
        for text, kind in zip(texts[2:5], kinds(task), strict=True):
            text.style = STYLES[kind]
        drawn.add_row(*texts)
    return drawn


def _folded(name: str) -> str:
    parts = (name[start : start + LONGEST_NAME] for start in range(0, len(name), LONGEST_NAME))
    return "\n".join(parts)


def plain_table(each: ReportTable) -> Table:
    """Return a table for a terminal."""
    drawn = Table(box=box.SIMPLE_HEAD, title=each.title.lower(), title_justify="left", padding=_CLOSE)
    for number, column in enumerate(each.header):
        least = max(map(len, column.split()), default=0)  # whole words
        justify: Literal["left", "right"] = "left" if each.of_text(number) else "right"
        drawn.add_column(column, justify=justify, overflow="fold", min_width=least)
    for row in each.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _aggregate_table(summary: Summary, width: int) -> Table:
    """Return the aggregate table; on a narrow terminal without scores, and with geometric means alone."""
    between = (0, 1) if width >= WIDE else (0, 0, 0, 1)
    drawn = Table(box=box.SIMPLE_HEAD, title="aggregates", title_justify="left", padding=between)
    for column in AGGREGATE_COLUMNS if width >= WIDE else AGGREGATE_COLUMNS[:-1]:
        drawn.add_column(column, overflow="fold")
    for name, aggregate in aggregates(summary):
        row = aggregate_cells(name, aggregate)
        drawn.add_row(*(row if width >= WIDE else map(_first_mean, row[:-1])))
    return drawn


def _first_mean(cell: str) -> str:
    first, dot, others = cell.partition(" · ")
    return f"{first} {others[others.rindex('(') :]}" if dot else cell


def _markdown(report: RunReport) -> str:
    summary = report.summary
    lines = [
        "# kernelwright run",
        "",
        f"{summary.headline}.",
        "",
        *markdown_table(COLUMNS, map(cells, summary.with_parts(summary.tasks))),
    ]
    lines += ["", "## Aggregates", ""]
    lines += markdown_table(AGGREGATE_COLUMNS, (aggregate_cells(*row) for row in aggregates(summary)))
    lines += ["", AGGREGATE_NOTE]
    if summary.measures_nothing:
        lines += ["", "## Tasks that measure nothing (counted apart)", ""]
        lines += markdown_table(
            (*COLUMNS, "why it measures nothing"),
            ((*cells(task), task.measures_nothing_why) for task in summary.measures_nothing),
        )
    for each in report.tables():
        lines += ["", f"## {each.title}", "", each.note, "", *markdown_table(each.header, each.rows)]
    lines += ["", "## Environment", ""]
    lines += markdown_table(("", ""), [*report.conditions(), ("cost", cost(summary))])
    lines += ["", "Reproduce with:", "", *(f"    {line}" for line in report.reproduction().splitlines())]
    return "\n".join(lines) + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |"

    return [line(header), "|" + " --- |" * len(header), *map(line, rows)]


def _csv(summary: Summary) -> str:
    """Return one line per task with raw numbers of the best kernel; unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    bounds = ("median", "low", "high")
    names = ("speedup_eager", "speedup_compile", "speedup_fastest", "candidate_us")
    plain = (
        "outcome",
        "submitted",
        "own_kernel_share",
        "floor_us",
        "speed_of_light_score",
        "candidate",
        "rounds",
        "stop_reason",
        "llm_calls",
        "usd",
        "seconds",
    )
    measured = [f"{name}_{bound}" for name in names for bound in bounds]
    writer.writerow(["task", "level", "verdict", *measured, *plain, "measures_nothing", "part_of"])
    for task in summary.with_parts((*summary.tasks, *summary.measures_nothing)):
        numbers = [
            getattr(interval, bound) if interval else None
            for interval in (*(getattr(task.speedup, name, None) for name in BASELINES), task.candidate_us)
            for bound in bounds
        ]
        values = [getattr(task, name) for name in plain]
        apart = task in summary.measures_nothing
        whole = task.part.whole if task.part is not None else ""
        writer.writerow([task.task, task.level, task.verdict, *numbers, *values, str(apart).lower(), whole])
    return out.getvalue()
