"""Folds of a page, one for each round: its idea, the diff to its parent, and what was asked and answered.

A run of 250 tasks with ten rounds each has 200 MB of prompts and answers, a page of which no browser would
be glad. So there is a limit, up to half of it for files and the rest for calls. The rounds that led to the
best kernels come first; of the others the command shows what is left out here.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import escape

from kernelwright.profiling.roofline import in_words
from kernelwright.profiling.tables import finding_lines
from kernelwright.results import formatting
from kernelwright.results.report.rounds import CallReport, RoundReport

# Characters of HTML: a page at most, and what it has of a task besides the folds.
_PAGE, _TASK, _LEAST = 8_000_000, 20_000, 1_000_000
_OF_A_LINE = len('<span class="removed"></span>')

RoundKey = tuple[str, int]  # task, round


@dataclass(frozen=True)
class FoldedCall:
    """A call; `system`: the number of its system prompt, which the page has once."""

    call: CallReport
    system: int | None
    messages: tuple[
        tuple[str, str], ...
    ]  # without the system prompt, and those of the round's call before it


@dataclass(frozen=True)
class Fold:
    round: RoundReport
    summary: str
    has_files: bool
    has_calls: bool
    lines: tuple[tuple[str, str], ...]  # of the diff or, without a parent, of the file: (kind, text)
    calls: tuple[FoldedCall, ...]
    profile: tuple[str, ...]  # its distance from the roofline, and what was found


@dataclass(frozen=True)
class Folds:
    """Folds of all rounds of a run, and the system prompts that they refer to."""

    of: Mapping[RoundKey, Fold]
    systems: tuple[tuple[str, str], ...]  # role, text


def folds(rounds: Iterable[RoundReport], first: Collection[RoundKey]) -> Folds:
    """Return the folds of a page; `first`: the rounds that matter most."""
    ordered = sorted(rounds, key=lambda each: _key(each) not in first)
    room = max(_LEAST, _PAGE - _TASK * len({each.task for each in ordered}))
    with_files, used = _fitting(ordered, room // 2, _size_of_file)
    systems: dict[str, int] = {}
    roles: list[tuple[str, str]] = []
    for call in (call for each in ordered for call in each.calls):
        text = _system(call)
        if text and text not in systems:
            systems[text] = len(systems) + 1
            roles.append((call.role, text))
    fixed = sum(_length(text) for text in systems)
    with_calls, _ = _fitting(ordered, room - used - fixed, lambda each: sum(map(_size, each.calls)))
    found = {}
    for each in ordered:
        key = _key(each)
        found[key] = Fold(
            round=each,
            summary=_summary(each),
            has_files=key in with_files,
            lines=_lines(each) if key in with_files else (),
            has_calls=key in with_calls,
            profile=_profile(each) if key in with_files else (),
            calls=tuple(_folded(call, systems) for call in each.calls) if key in with_calls else (),
        )
    return Folds(found, tuple(roles))


def command(run: str, task: str, number: int | None = None) -> str:
    """Return the command that shows a round of a task; without a number for the reader to fill in."""
    words = shlex.join(["kernelwright", "report", run, task])
    return f"{words} --round {'N' if number is None else number}"


def _profile(shown: RoundReport) -> tuple[str, ...]:
    profile = shown.profile
    if profile is None:
        return ()
    light = in_words(profile)
    found = (" ".join(finding_lines(finding)) for finding in profile.findings)
    return f"Bound by {profile.bottleneck}{f'; {light}' if light else ''}.", *found


def kind_of_line(line: str) -> str:
    """Return what a line of a unified diff does: "added", "removed", "place" or nothing."""
    if line.startswith(("+++", "---", "@@")):
        return "place"
    return {"+": "added", "-": "removed"}.get(line[:1], "")


def _key(shown: RoundReport) -> RoundKey:
    return shown.task, shown.round


def _fitting(
    rounds: Sequence[RoundReport], most: int, size: Callable[[RoundReport], int]
) -> tuple[set[RoundKey], int]:
    """Return the first rounds whose sizes fit, and their size."""
    fitting, used = set[RoundKey](), 0
    for each in rounds:
        more = size(each)
        if used + more > most:
            break
        used += more
        fitting.add(_key(each))
    return fitting, used


def _size_of_file(shown: RoundReport) -> int:
    return sum(_length(line) + 1 + _OF_A_LINE * bool(kind) for kind, line in _lines(shown))


def _lines(shown: RoundReport) -> tuple[tuple[str, str], ...]:
    if shown.parent is None:
        return (("", shown.source),)
    return tuple((kind_of_line(line), line) for line in shown.diff.splitlines())


def _system(call: CallReport) -> str:
    return call.messages[0][1] if call.messages and call.messages[0][0] == "system" else ""


def _folded(call: CallReport, systems: Mapping[str, int]) -> FoldedCall:
    number = systems.get(_system(call))
    new = call.messages[max(call.repeats, number is not None) :]
    return FoldedCall(call, number, new)


def _size(call: CallReport) -> int:
    new = call.messages[max(call.repeats, bool(_system(call))) :]
    return sum(_length(text) for text in (*(text for _, text in new), call.reply, call.reasoning))


def _length(text: str) -> int:
    return len(escape(text))


def _summary(shown: RoundReport) -> str:
    what = [f"diff to round {shown.parent}" if shown.parent is not None else "file"]
    if shown.calls:
        calls = f"{len(shown.calls)} call{'s' if len(shown.calls) > 1 else ''}"
        what += [calls, f"{shown.tokens:,} tokens", formatting.money(shown.usd)]
    return " · ".join(what)
