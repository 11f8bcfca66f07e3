"""A task's rounds as an overview, and one of them in full, for a terminal or as Markdown."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Evaluation, Record, Verdict
from kernelwright.kernelbench.speed_of_light import below_floor, score_in_words, score_of
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import in_words
from kernelwright.profiling.tables import described, finding_lines
from kernelwright.results import formatting
from kernelwright.results.report import folds, rounds
from kernelwright.results.report.contents import RunReport, size_cells
from kernelwright.results.report.formats import (
    STYLES,
    TABLE_WIDTH,
    WIDE,
    ReportFormat,
    console,
    markdown_table,
)
from kernelwright.results.report.rounds import CallReport, RoundReport

COLUMNS = ("round", "verdict", "idea", "from", "vs eager", "SOL", "time", "calls", "tokens", "cost")
_NARROW = ("round", "verdict", "idea", "vs eager", "SOL", "time", "cost")  # that 80 characters have room for
_WHOSE = {
    "system": "system prompt",
    "user": "prompt",
    "assistant": "an earlier reply",
    "tool": "result of a tool",
}
_LONGEST_IDEA = 120  # characters

Language = Literal["text", "diff", "python"]


class JsonTask(Record):
    """Output of `report RUN TASK --format json`."""

    schema_version: int = 1
    task: str
    rounds: tuple[RoundReport, ...]


@dataclass(frozen=True)
class RoundPart:
    """A titled part of a round's report."""

    title: str
    text: str
    language: Language = "text"


def render(
    report: RunReport, task: str, number: int | None, format: ReportFormat, width: int = TABLE_WIDTH
) -> str:
    """Render the rounds of a task, or one of them, as text that ends with a newline. Raises UsageError."""
    if format in (ReportFormat.csv, ReportFormat.html, ReportFormat.kernelbench):
        raise UsageError(
            f"the rounds of one task cannot be reported as {format}",
            "choose --format table, md or json; the page of the whole run has all rounds, too",
        )
    found = _rounds(report, task)
    shown = None if number is None else rounds.numbered(number, found)
    if format == ReportFormat.json:
        record = shown or JsonTask(task=found[0].task if found else task, rounds=tuple(found))
        return record.model_dump_json(indent=2) + "\n"
    if format == ReportFormat.md:
        return _markdown(report, task, found, shown)
    screen = Console(file=io.StringIO(), width=width)
    screen.print(table(report, task, number, width))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def show(report: RunReport, task: str, number: int | None) -> None:
    """Print the rounds of a task, or one of them, for a terminal. Raises UsageError."""
    screen = console()
    screen.print(table(report, task, number, screen.width))


def table(report: RunReport, task: str, number: int | None, width: int = TABLE_WIDTH) -> Group:
    """Return the rounds of a task, or one of them, for a terminal of `width` characters."""
    found = _rounds(report, task)
    if number is None:
        return _overview(report, task, found, width)
    parts: list[RenderableType] = []
    for part in _parts(rounds.numbered(number, found)):
        parts += [Text(), Rule(Text(part.title, "bold"), align="left", style="dim"), _drawn(part)]
    return Group(*parts)


def _drawn(part: RoundPart) -> RenderableType:
    if part.language == "text":
        return Text(part.text, overflow="fold")
    return Syntax(part.text, part.language, theme="ansi_dark", background_color="default", word_wrap=True)


def _rounds(report: RunReport, task: str) -> list[RoundReport]:
    name = rounds.named(task, list(report.attempts))
    return rounds.rounds(report.attempts[name], [call for call in report.calls if call.task == name])


def _overview(report: RunReport, task: str, found: Sequence[RoundReport], width: int) -> Group:
    title, header = _title(report, task), COLUMNS if width >= 100 else _NARROW
    drawn = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1 if width >= WIDE else 0, 0, 1)
    )
    for column in header:
        numeric = column not in ("round", "verdict", "idea", "vs eager")
        justify: Literal["left", "right"] = "right" if numeric else "left"
        drawn.add_column(column, justify=justify, no_wrap=column != "idea", overflow="fold")
    for cells, kind, correct in _rows(report, task, found):
        texts = {name: Text(cell) for name, cell in zip(COLUMNS, cells, strict=True)}
        texts["verdict"].style = "green" if correct else "red"
        texts["vs eager"].style = STYLES[kind]
        drawn.add_row(*(texts[name] for name in header))
    return Group(drawn, Text(_hint(report, task, found), "dim"))


def _title(report: RunReport, task: str) -> str:
    name = rounds.named(task, list(report.attempts))
    everything = report.summary.everything
    summary = next(each for each in everything if each.task == name)
    cost = f"{formatting.money(summary.usd)} for {summary.llm_calls} model calls"
    stopped = summary.stop_reason or "interrupted or still running"
    return f"{name}: {stopped}; {cost}, {formatting.duration(summary.seconds)} of work"


def _hint(report: RunReport, task: str, found: Sequence[RoundReport]) -> str:
    if not found:
        return "No round is recorded yet."
    return f"In full: {folds.command(report.where, found[-1].task, found[-1].round)}"


def _rows(
    report: RunReport, task: str, found: Sequence[RoundReport]
) -> list[tuple[tuple[str, ...], formatting.Kind, bool]]:
    """Return the cells of a row for each attempt, in the order of COLUMNS."""
    attempts = report.attempts[rounds.named(task, list(report.attempts))]
    by_number = {each.round: each for each in found}
    rows: list[tuple[tuple[str, ...], formatting.Kind, bool]] = []
    for attempt in attempts:
        shown = None if attempt.confirms else by_number[attempt.round]
        evaluation = attempt.evaluation
        over_eager = evaluation.speedup.eager if evaluation.speedup is not None else None
        timing = evaluation.timing
        cells = (
            rounds.numbering(attempt, attempts),
            str(evaluation.verdict).replace("_", " "),
            _idea(shown) if shown is not None else "",
            str(shown.parent) if shown is not None and shown.parent is not None else formatting.NOTHING,
            formatting.with_bounds(over_eager),
            formatting.score(score_of(evaluation), below_floor(evaluation)),
            formatting.time(timing.candidate_us.median if timing is not None else None),
            str(len(shown.calls)) if shown is not None else "",
            f"{shown.tokens:,}" if shown is not None else "",
            formatting.money(shown.usd) if shown is not None else "",
        )
        rows.append((cells, formatting.kind(over_eager), evaluation.verdict is Verdict.correct))
    return rows


def _idea(shown: RoundReport) -> str:
    advised = shown.advice.method if shown.advice is not None else ""
    return formatting.one_line(shown.idea or advised or shown.author, _LONGEST_IDEA)


def _markdown(report: RunReport, task: str, found: Sequence[RoundReport], shown: RoundReport | None) -> str:
    if shown is None:
        rows = [cells for cells, _, _ in _rows(report, task, found)]
        lines = [
            f"# {_title(report, task)}",
            "",
            *markdown_table(COLUMNS, rows),
            "",
            _hint(report, task, found),
        ]
        return "\n".join(lines) + "\n"
    lines = []
    for level, part in enumerate(_parts(shown)):
        lines += [f"#{'#' * (level > 0)} {part.title}", "", _fenced(part), ""]
    return "\n".join(lines)


def _fenced(part: RoundPart) -> str:
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", part.text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{part.language if part.language != 'text' else ''}\n{part.text}\n{fence}"


def _parts(shown: RoundReport) -> list[RoundPart]:
    """Return the parts of a round's report in the order in which things happened."""
    parts = [RoundPart(f"{shown.task}, round {shown.round}", "\n".join(_facts(shown)))]
    for number, call in enumerate(shown.calls, 1):
        parts += _of_call(f"call {number} of {len(shown.calls)}, {call.role}", call)
    if shown.parent is not None:
        parts.append(RoundPart(f"diff to round {shown.parent}", shown.diff or "(no difference)", "diff"))
    parts.append(RoundPart("file", shown.source, "python"))
    parts.append(RoundPart("outcome", "\n".join(_outcome(shown.evaluation))))
    parts += [RoundPart("measured again", "\n".join(_outcome(again))) for again in shown.confirmations]
    if shown.profile is not None:
        parts.append(RoundPart("profile", "\n".join(_profile(shown.profile))))
    return parts


def _of_call(name: str, call: CallReport) -> list[RoundPart]:
    cached = f" ({call.cached_tokens:,} cached)" if call.cached_tokens else ""
    facts = (
        f"{call.model}: {call.prompt_tokens:,} prompt tokens{cached}, {call.completion_tokens:,} completion "
        f"tokens, {formatting.money(call.usd)}, {formatting.duration(call.seconds)}"
    )
    if call.attempts > 1:
        facts += f", {call.attempts} attempts"
    if call.finish not in ("", "stop"):
        facts += f"; ended by {call.finish}"
    if call.repeats:
        facts += f"\nafter the same {call.repeats} messages as the call before"
    parts = [RoundPart(name, f"{facts}\n{call.error}".rstrip())]
    parts += [RoundPart(f"{name}: {_WHOSE.get(role, role)}", text)
              for role, text in call.messages[call.repeats :]]  # fmt: skip
    if call.reasoning:
        parts.append(RoundPart(f"{name}: reasoning", call.reasoning))
    if not call.error:
        parts.append(RoundPart(f"{name}: reply", call.reply))
    return parts


def _facts(shown: RoundReport) -> list[str]:
    advice = shown.advice
    made = f"from round {shown.parent}" if shown.parent is not None else "from nothing before"
    lines = [f"{shown.language}, by {shown.author}, {made}"]
    if shown.idea:
        lines.append(f"idea: {shown.idea}")
    if advice is not None:
        lines.append(f"advice: {advice.bottleneck}; {advice.method}; {advice.plan}")
    lines.append(_in_short(shown.evaluation))
    if shown.calls:
        lines.append(
            f"{len(shown.calls)} model calls, {shown.tokens:,} tokens, {formatting.money(shown.usd)}"
        )
    return lines


def _in_short(evaluation: Evaluation) -> str:
    verdict = str(evaluation.verdict).replace("_", " ")
    speedup = evaluation.speedup
    over_eager = formatting.with_bounds(speedup.eager) if speedup is not None else ""
    return f"outcome: {verdict}{f', {over_eager} vs eager' if over_eager else ''}"


def _outcome(evaluation: Evaluation) -> list[str]:
    lines = [_in_short(evaluation)]
    timing, stages = evaluation.timing, evaluation.stages
    if timing is not None:
        times = (
            ("this kernel", timing.candidate_us),
            ("eager", timing.eager_us),
            ("torch.compile", timing.compile_us),
        )
        lines += [
            f"{name}: {formatting.time(time.median)} a call" for name, time in times if time is not None
        ]
    for each in evaluation.sizes:
        size, weight, verdict, time, _, over_eager, _, _ = size_cells(each)
        how = f"{time} a call, {over_eager} vs eager" if each.speedup is not None else verdict
        lines.append(f"at {size}, weight {weight}: {how}")
    last = evaluation.sizes[-1] if evaluation.sizes else None
    if last is not None and last.size.hidden and not evaluation.right:  # the reason below does not tell
        lines.append(last.reason)
    if said := score_in_words(evaluation):
        lines.append(f"speed-of-light score: {said}")
    if evaluation.own_kernel_share is not None:
        lines.append(f"time in kernels of its own: {formatting.share(evaluation.own_kernel_share)}")
    lines.append(
        f"build {formatting.duration(stages.build_s)}, verify {formatting.duration(stages.verify_s)}, "
        f"time {formatting.duration(stages.time_s)}, in all {formatting.duration(stages.total_s)}"
    )
    return [*lines, *([evaluation.reason] if evaluation.reason else [])]


def _profile(profile: Profile) -> list[str]:
    lines = [f"bound by {profile.bottleneck}" + (f"; {light}" if (light := in_words(profile)) else "")]
    for finding in profile.findings:
        says, fix = finding_lines(finding)
        lines.append(f"- {says} {fix}")
    lines += described(profile.metrics)
    return lines + [f"{rung.name} read nothing: {rung.why}" for rung in profile.rungs if not rung.on]
