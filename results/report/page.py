"""The report as one self-contained HTML page: cards, a chart, tables and each task's rounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernelwright.kernelbench.records import Advice, Interval, Verdict
from kernelwright.kernelbench.speed_of_light import below_floor, score_in_words, score_of
from kernelwright.profiling.records import Profile, RungOutcome
from kernelwright.profiling.roofline import in_words
from kernelwright.profiling.tables import MetricTable, finding_lines, tables
from kernelwright.results import formatting
from kernelwright.results.lessons.calibration import measured_gain, predicted_gain
from kernelwright.results.report.contents import (
    AGGREGATE_COLUMNS,
    AGGREGATE_NOTE,
    COLUMNS,
    RunReport,
    aggregate_cells,
    aggregates,
    intervals,
    kinds,
    speedups,
)
from kernelwright.results.report.curves import Curve, curve
from kernelwright.results.report.folds import Fold, Folds, command, folds
from kernelwright.results.report.rounds import numbering, rounds
from kernelwright.results.report.spending import progress
from kernelwright.results.store.records import LlmCall, RecordedAttempt, TaskRun
from kernelwright.results.summary import TaskSummary, best_attempt

# The chart, in SVG user units.
LABEL_WIDTH, PLOT_WIDTH, VALUE_WIDTH, ROW_HEIGHT, AXIS_HEIGHT = 250, 520, 170, 26, 30


@dataclass(frozen=True)
class Bar:
    """One task's speedup over eager, from 1.0 to its median, with its interval; x in user units."""

    task: str
    label: str
    value: str
    kind: formatting.Kind
    y: float
    start: float
    width: float
    low: float
    high: float
    compile: float | None  # where the speedup over torch.compile lies


@dataclass(frozen=True)
class Chart:
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]  # (x, label)
    one: float  # x of 1.0
    width: int = LABEL_WIDTH + PLOT_WIDTH + VALUE_WIDTH
    height: int = 0
    row: int = ROW_HEIGHT
    axis: int = AXIS_HEIGHT
    left: int = LABEL_WIDTH - 12  # where labels end
    right: int = LABEL_WIDTH + PLOT_WIDTH


@dataclass(frozen=True)
class Round:
    """One attempt in a task's history: the advice, the expected and the measured gain."""

    number: str
    verdict: Verdict
    author: str
    speedup: Interval | None
    time: str
    score: str  # empty if the floor is not known
    advice: Advice | None
    predicted: float | None  # gain
    outcome: float | None  # time of the parent / time of this one; the advice predicted it
    reason: str
    best: bool
    again: bool  # a measurement at the end
    idea: str
    fold: Fold | None  # None of a confirmation


@dataclass(frozen=True)
class TaskSection:
    summary: TaskSummary
    rounds: tuple[Round, ...]
    lineage: tuple[Round, ...]  # of the best kernel, the first attempt first
    lessons: tuple[tuple[str, tuple[str, ...]], ...]  # when models were told something new, and what
    audit: str
    profile: "ShownProfile | None"  # of the best kernel
    language: str
    score: str  # of the best kernel, and what is left to gain; empty if the floor is not known
    source: str  # of the best kernel; empty without one
    command: str  # that shows a round in full


@dataclass(frozen=True)
class ShownProfile:
    """Profile of a kernel: its distance from the roofline, what was found, its metrics, its profilers."""

    light: str
    findings: tuple[tuple[str, str], ...]  # what is found, and what to do about it
    tables: tuple[MetricTable, ...]
    rungs: tuple[RungOutcome, ...]


def page(report: RunReport) -> str:
    """Render the whole page. Sources and messages of candidates are escaped, since they are untrusted."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folded = _folds(report)
    sections = {task.task.id: _section(report, task, folded) for task in report.tasks}
    summary = report.summary
    return environment.get_template("report.html.j2").render(
        formatting=formatting,
        report=report,
        summary=summary,
        chart=_chart(summary.tasks),
        curves=_curves(report),
        systems=folded.systems,
        columns=COLUMNS,
        aggregate_columns=AGGREGATE_COLUMNS,
        aggregates=[aggregate_cells(*row) for row in aggregates(summary)],
        aggregate_note=AGGREGATE_NOTE,
        sections=sections,
        speedups=speedups,
        intervals=intervals,
        kinds=kinds,
    )


def _folds(report: RunReport) -> Folds:
    """Fold all rounds; those that led to the best kernels matter most."""
    of_task: dict[str, list[LlmCall]] = {}
    for call in report.calls:
        if call.task is not None:
            of_task.setdefault(call.task, []).append(call)
    found = (each for name, rows in report.attempts.items() for each in rounds(rows, of_task.get(name, ())))
    led = {
        (attempt.task, attempt.round)
        for rows in report.attempts.values()
        for attempt in lineage(best_attempt(rows), rows)
    }
    return folds(found, led)


def _curves(report: RunReport) -> list[Curve]:
    """Draw what the models' dollars gained, or their tokens where they cost none."""
    wholes = {task.task.id for task in report.tasks if task.task.part is None}
    attempts = {name: rows for name, rows in report.attempts.items() if name in wholes}
    course = progress(attempts, report.calls)
    priced = bool(report.summary.usd)
    if len(course) < 2 or not (priced or course[-1].tokens):
        return []
    x = [state.usd if priced else float(state.tokens) for state in course]
    over = formatting.dollars if priced else formatting.tokens
    series = (
        ("speedup over eager, geometric mean of all tasks", False, [state.speedup for state in course]),
        ("tasks faster than eager", True, [float(state.faster) for state in course]),
    )
    drawn = (
        curve(name, list(zip(x, values, strict=True)), over, stepped=True, counts=counts)
        for name, counts, values in series
    )
    return [found for found in drawn if found is not None]


def _section(report: RunReport, task: TaskRun, folded: Folds) -> TaskSection:
    task_id = task.task.id
    attempts = report.attempts[task_id]
    best = best_attempt(attempts)
    return TaskSection(
        summary=next(summary for summary in report.summary.everything if summary.task == task_id),
        rounds=tuple(_round(attempt, attempts, attempt is best, folded) for attempt in attempts),
        lineage=tuple(_round(attempt, attempts, False, folded) for attempt in lineage(best, attempts)),
        lessons=_told(task),
        audit=task.audit,
        profile=_shown(best.profile) if best is not None and best.profile is not None else None,
        language=best.candidate.language if best else "",
        score=score_in_words(best.evaluation) if best else "",
        source=best.candidate.source if best else "",
        command=command(report.where, task_id),
    )


def _shown(profile: Profile) -> ShownProfile:
    return ShownProfile(
        light=in_words(profile),
        findings=tuple(finding_lines(finding) for finding in profile.findings),
        tables=tuple(tables(profile)),
        rungs=profile.rungs,
    )


def lineage(best: RecordedAttempt | None, attempts: Sequence[RecordedAttempt]) -> list[RecordedAttempt]:
    """Return the attempts that led to the best one, each made from the one before, in order."""
    firsts: dict[str, RecordedAttempt] = {}
    for attempt in attempts:
        firsts.setdefault(attempt.candidate.sha256, attempt)
    line: list[RecordedAttempt] = []
    at = firsts[best.candidate.sha256] if best is not None else None
    while at is not None:
        line.insert(0, at)
        earlier = (firsts.get(parent) for parent in at.candidate.parents)
        at = next((parent for parent in earlier if parent is not None and parent.id < line[0].id), None)
    return line


def _told(task: TaskRun) -> tuple[tuple[str, tuple[str, ...]], ...]:
    told: list[tuple[str, tuple[str, ...]]] = []
    for occasion, lines in task.lessons.items():
        seen, _, language = occasion.partition(" ")
        if language in ("expectations", "ranking"):  # of the rules judge
            continue
        if not told or told[-1][1] != lines:
            told.append((f"before round {seen}, of {language} kernels", lines))
    return tuple(told)


def _round(attempt: RecordedAttempt, attempts: list[RecordedAttempt], best: bool, folded: Folds) -> Round:
    evaluation, score = attempt.evaluation, score_of(attempt.evaluation)
    below = below_floor(evaluation)
    tried = [other for other in attempts if not other.confirms]
    return Round(
        number=numbering(attempt, attempts),
        verdict=evaluation.verdict,
        author=attempt.candidate.author,
        speedup=evaluation.speedup.eager if evaluation.speedup else None,
        time=formatting.time(evaluation.timing.candidate_us.median if evaluation.timing else None),
        score=formatting.score(score, below) if below or score is not None else "",
        advice=attempt.advice if attempt.advice is not None and attempt.advice.plan else None,
        predicted=predicted_gain(attempt.advice),
        outcome=None if attempt.confirms else measured_gain(attempt, tried),
        reason="" if evaluation.verdict == Verdict.correct else evaluation.reason,
        best=best,
        again=attempt.confirms,
        idea=attempt.candidate.idea,
        fold=None if attempt.confirms else folded.of.get((attempt.task, attempt.round)),
    )


def _chart(tasks: tuple[TaskSummary, ...]) -> Chart | None:
    """Draw horizontal bars on a logarithmic axis, best first; None if nothing was compared with eager."""
    measured = sorted(
        ((task, found) for task in tasks if (found := task.counted("eager")) is not None),
        key=lambda row: -row[1].median,
    )
    if not measured:
        return None
    shown = [bound for _, interval in measured for bound in (interval.low, interval.high)]
    shown += [found.median for task, _ in measured if (found := task.counted("compile")) is not None]
    low, high = min(0.8, *shown), max(1.25, *shown)
    margin = (high / low) ** 0.03
    low, high = low / margin, high * margin

    suites = {task.task.partition(":")[0] for task, _ in measured}
    suite = f"{suites.pop()}:" if len(suites) == 1 else ""

    def x(speedup: float) -> float:
        return round(LABEL_WIDTH + PLOT_WIDTH * math.log(speedup / low) / math.log(high / low), 1)

    bars = []
    for index, (task, interval) in enumerate(measured):
        compiled = task.counted("compile")
        bars.append(
            Bar(
                task=task.task,
                label=_short(task.task.removeprefix(suite)),
                value="reference" if task.submitted else formatting.with_bounds(interval),
                kind=kinds(task)[0],
                y=AXIS_HEIGHT + index * ROW_HEIGHT,
                start=min(x(1.0), x(interval.median)),
                width=max(1.0, abs(x(interval.median) - x(1.0))),
                low=x(interval.low),
                high=x(interval.high),
                compile=x(compiled.median) if compiled else None,
            )
        )
    ticks = tuple((x(tick), f"{tick:g}×") for tick in _ticks(low, high))
    return Chart(tuple(bars), ticks, x(1.0), height=AXIS_HEIGHT + len(bars) * ROW_HEIGHT + 6)


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten; finer ones on a short axis, fewer on a long one."""
    decades = math.log10(high / low)
    steps = (1, 1.2, 1.5, 2, 3, 5, 7) if decades < 0.8 else (1, 2, 5) if decades < 3 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (step * 10.0**exponent for exponent in exponents for step in steps)
    return [tick for tick in ticks if low <= tick <= high]


def _short(task: str, length: int = 34) -> str:
    """Return the level and the end of the id, which tell tasks apart."""
    level, slash, name = task.partition("/")
    if len(task) <= length or len(level) + 2 >= length:
        return task[-length:]
    return f"{level}{slash}…{name[len(level) + 2 - length :]}"
