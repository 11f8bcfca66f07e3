"""Tables of a run's money and time by role, by outcome and by stage, and what each dollar gained.

Calls carry no time of day. What a run had spent when an attempt was recorded is taken as the cost of all
calls stored up to the last one that served the attempt's round:

    call 1, $0.02 (softmax, round 0) ─► softmax round 0 at $0.02
    call 2, $0.03 (gelu, round 0)
    call 3, $0.01 (softmax, round 1) ─► softmax round 1 at $0.06
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.records import Verdict
from kernelwright.results import formatting
from kernelwright.results.report.rounds import calls_by_round
from kernelwright.results.report.tables import ReportTable
from kernelwright.results.store.records import LlmCall, RecordedAttempt
from kernelwright.results.summary import best_attempt, total_usd

_BETTER, _CORRECT = "correct, a new best", "correct, no gain"
_NO_ANSWER, _NO_ROUND = "no answer", "no round came of it"
_REASON = 100  # characters

_ROLES = ("Models by role", "Completion tokens include reasoning.")
_OUTCOMES = (
    "Models by outcome of the round",
    "A round's calls, of the coder and of the judge before it. No answer: refused, or ended by an error.",
)
_FAILURES = ("Failures by kind", "Rounds whose file was not correct. Numbers in a reason stand as N.")
_STAGES = (
    "Time by stage",
    "Added up over all tasks and rounds. Stages of several tasks overlap, so a run takes less by the clock.",
)


@dataclass(frozen=True)
class Progressed:
    """State of a run after one of its attempts, and what its models had cost until then."""

    usd: float
    tokens: int
    speedup: float  # over eager, of the best so far: geometric mean over all tasks of the lower bounds
    faster: int  # tasks faster than eager by the whole interval


def spending_tables(
    attempts: Mapping[str, Sequence[RecordedAttempt]], calls: Sequence[LlmCall]
) -> list[ReportTable]:
    """Return the tables that have rows."""
    by_outcome: dict[str, list[LlmCall]] = {}
    by_role: dict[str, list[LlmCall]] = {}
    for call in calls:
        by_role.setdefault(f"{call.role}, {call.model}", []).append(call)
    for task, own in _by_task(calls).items():
        outcomes = _outcomes(attempts.get(task or "", ()))
        for number, served in calls_by_round(attempts.get(task or "", ()), own).items():
            for call in served:
                outcome = _NO_ANSWER if _failed(call) else outcomes.get(number, _NO_ROUND)
                by_outcome.setdefault(outcome, []).append(call)
    header = ("calls", "prompt tokens", "completion tokens", "cost", "share")
    tables = [
        ReportTable(*_ROLES, ("role", *header), _costs(by_role, calls)),
        ReportTable(*_OUTCOMES, ("outcome", *header), _costs(by_outcome, calls)),
        ReportTable(*_FAILURES, ("verdict", "rounds", "tasks", "most frequent reason"), _failures(attempts)),
        ReportTable(*_STAGES, ("stage", "time", "share"), _stages(attempts, calls)),
    ]
    return [table for table in tables if table.rows]


def progress(attempts: Mapping[str, Sequence[RecordedAttempt]], calls: Sequence[LlmCall]) -> list[Progressed]:
    """Return the course of a run by cost, an entry for each attempt of a search."""
    last = _last_calls(attempts, calls)
    spent = [(0.0, 0)]
    for call in calls:
        usd, tokens = spent[-1]
        spent.append((usd + (call.usd or 0.0), tokens + call.prompt_tokens + call.completion_tokens))
    best: dict[str, RecordedAttempt] = {}
    course: list[Progressed] = []
    reached = 0  # calls
    searched = (a for rows in attempts.values() for a in rows if not a.confirms)
    for attempt in sorted(searched, key=lambda each: each.id):
        reached = max(reached, last.get((attempt.task, attempt.round), 0))
        seen = [attempt, *([best[attempt.task]] if attempt.task in best else [])]
        if (better := best_attempt(seen)) is not None:
            best[attempt.task] = better
        gains = [max(1.0, _least(one)) for one in best.values()]
        mean = math.exp(math.fsum(map(math.log, gains)) / len(attempts))
        usd, tokens = spent[reached]
        course.append(Progressed(usd, tokens, mean, sum(gain > 1 for gain in gains)))
    return course


def _least(attempt: RecordedAttempt) -> float:
    """Return the lower bound of the speedup over eager; 1.0 if it is unknown."""
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 1.0


def _last_calls(
    attempts: Mapping[str, Sequence[RecordedAttempt]], calls: Sequence[LlmCall]
) -> dict[tuple[str, int], int]:
    """Return the number of calls stored until the last one of each task's rounds."""
    places = {id(call): place for place, call in enumerate(calls, 1)}
    return {
        (task, number): max(places[id(call)] for call in served)
        for task, own in _by_task(calls).items()
        if task is not None
        for number, served in calls_by_round(attempts.get(task, ()), own).items()
        if number is not None
    }


def _by_task(calls: Sequence[LlmCall]) -> dict[str | None, list[LlmCall]]:
    found: dict[str | None, list[LlmCall]] = {}
    for call in calls:
        found.setdefault(call.task, []).append(call)
    return found


def _outcomes(attempts: Sequence[RecordedAttempt]) -> dict[int | None, str]:
    """Return the outcome of each round of a task in words."""
    found: dict[int | None, str] = {}
    best: RecordedAttempt | None = None
    for attempt in attempts:
        if attempt.confirms:
            continue
        verdict = attempt.evaluation.verdict
        if verdict is Verdict.correct:
            better = best_attempt([attempt] if best is None else [best, attempt])
            found[attempt.round] = _BETTER if better is attempt else _CORRECT
            best = better
        else:
            found[attempt.round] = str(verdict).replace("_", " ")
    return found


def _failed(call: LlmCall) -> bool:
    return isinstance(call.response, dict) and "error" in call.response


def _costs(groups: Mapping[str, Sequence[LlmCall]], calls: Sequence[LlmCall]) -> list[tuple[str, ...]]:
    """Return a row for each group, the most expensive first; shares are of dollars, else of tokens."""
    usd = total_usd(calls)

    def weight(some: Sequence[LlmCall]) -> float:
        priced = total_usd(some) if usd else None
        return priced if priced is not None else sum(c.prompt_tokens + c.completion_tokens for c in some)

    everything = weight(calls) or 1.0
    return [
        (
            name,
            str(len(some)),
            f"{sum(call.prompt_tokens for call in some):,}",
            f"{sum(call.completion_tokens for call in some):,}",
            formatting.money(total_usd(some)),
            formatting.share(weight(some) / everything),
        )
        for name, some in sorted(groups.items(), key=lambda group: -weight(group[1]))
    ]


def _failures(attempts: Mapping[str, Sequence[RecordedAttempt]]) -> list[tuple[str, ...]]:
    kinds: dict[Verdict, list[RecordedAttempt]] = {}
    for attempt in (a for rows in attempts.values() for a in rows):
        verdict = attempt.evaluation.verdict
        if not attempt.confirms and verdict not in (Verdict.correct, Verdict.unmeasured):
            kinds.setdefault(verdict, []).append(attempt)
    rows: list[tuple[str, ...]] = []
    for verdict, failed in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        reasons = Counter(_kind_of(attempt.evaluation.reason) for attempt in failed)
        [(reason, times)] = reasons.most_common(1)
        often = f"{reason} ({times} times)" if times > 1 else reason
        tasks = len({attempt.task for attempt in failed})
        rows.append((str(verdict).replace("_", " "), str(len(failed)), str(tasks), often))
    return rows


def _kind_of(reason: str) -> str:
    """Return the first line of a reason that says something, with N for its numbers."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason was recorded"]
    line = next((line for line in lines if re.search(r"\b[Ee]rror\b", line)), lines[0])
    return formatting.one_line(re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", line), _REASON)


def _stages(
    attempts: Mapping[str, Sequence[RecordedAttempt]], calls: Sequence[LlmCall]
) -> list[tuple[str, ...]]:
    found: dict[str, float] = defaultdict(float)
    for attempt in (a for rows in attempts.values() for a in rows):
        stages = attempt.evaluation.stages
        rest = stages.total_s - stages.build_s - stages.verify_s - stages.time_s
        found["build"] += stages.build_s
        found["verify"] += stages.verify_s
        found["time, of rounds" if not attempt.confirms else "time, of winners again"] += stages.time_s
        found["the rest of an evaluation"] += max(0.0, rest)
        found["profile"] += attempt.profile.seconds if attempt.profile is not None else 0.0
    for call in calls:
        found[f"answers, {call.role}"] += call.seconds
    everything = sum(found.values())
    return [
        (name, formatting.duration(seconds), formatting.share(seconds / everything))
        for name, seconds in sorted(found.items(), key=lambda stage: -stage[1])
        if seconds >= 0.05
    ]
