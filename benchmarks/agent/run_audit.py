"""Audit of a run that was killed and resumed: what it recorded, against what its endpoint knows.

Each check yields sentences about what is wrong. A process that was killed may lose the calls under way; of
those, and of answers that were not counted, the tokens are known between bounds.
"""

import json
import math
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.agent.faulty_model import Given, key_of
from benchmarks.agent.killed_runs import KilledRun
from kernelwright.agent.protocols import searched
from kernelwright.agent.search import rounds_of
from kernelwright.agent.search.agent import was_measured
from kernelwright.agent.spending.budget import SpendingLimits
from kernelwright.kernelbench.records import Verdict
from kernelwright.kernelbench.speed_of_light import trusted_share
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.store.records import LlmCall, RecordedAttempt, TaskRun, TaskState
from kernelwright.results.summary import best_attempt

# Verdicts on files, by what is wrong with them. Two calls of one that cheats may get the same inputs.
_VERDICTS: dict[str, frozenset[Verdict]] = {
    "right": frozenset({Verdict.correct}),
    "wrong": frozenset({Verdict.wrong_output}),
    "does not compile": frozenset({Verdict.build_error}),
    "crashes": frozenset({Verdict.runtime_error}),
    "never ends": frozenset({Verdict.timeout}),
    "cheats": frozenset({Verdict.cheating, Verdict.wrong_output}),
    "is no Python": frozenset({Verdict.build_error}),
    "without kernels": frozenset({Verdict.build_error}),
}
_NUMBER = re.compile(r"# (\d+)\s*\Z")


@dataclass(frozen=True)
class Audited:
    """A run, its endpoint's log and its processes. `prices`: dollars a million tokens, prompt and answer."""

    folder: Path
    given: Sequence[Given]
    run: KilledRun
    limits: SpendingLimits
    rounds: int
    prices: tuple[float, float]
    calls_at_once: int
    failing: str  # the task whose reference fails, and its words
    failure: str

    @cached_property
    def tasks(self) -> list[TaskRun]:
        with RunDatabase.open(self.folder, read_only=True) as database:
            return database.tasks()

    @cached_property
    def attempts(self) -> dict[str, list[RecordedAttempt]]:
        with RunDatabase.open(self.folder, read_only=True) as database:
            return {each.task.id: database.attempts(each.task.id) for each in self.tasks}

    @cached_property
    def calls(self) -> list[LlmCall]:
        with RunDatabase.open(self.folder, read_only=True) as database:
            return database.llm_calls()

    @cached_property
    def evaluations(self) -> int:
        with RunDatabase.open(self.folder, read_only=True) as database:
            return sum(database.evaluations().values())

    def usd(self, prompt: int, completion: int) -> float:
        return (prompt * self.prices[0] + completion * self.prices[1]) / 1e6

    @cached_property
    def kinds(self) -> dict[str, str]:
        return {number: kind for each in self.given for number, kind in each.files.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Why each task ended, or was left for a limit; "" if nobody knows."""
        left = dict(self.run.epochs[-1].not_begun)
        return {each.task.id: each.stop_reason or left.get(each.task.id, "") for each in self.tasks}

    def faults(self) -> list[str]:
        """Return everything that is wrong."""
        checks = (
            *(self._ends, self._verdicts, self._histories, self._accounts, self._asked_twice),
            *(self._unused, self._within_limits, self._database, self._summary),
        )
        return [fault for check in checks for fault in check()]

    @property
    def verdicts(self) -> Counter[tuple[str, str]]:
        """Number of times that each verdict was given on each kind of file."""
        found = Counter[tuple[str, str]]()
        for attempt in (each for attempts in self.attempts.values() for each in attempts):
            number = _NUMBER.search(attempt.candidate.source)
            if attempt.candidate.usable and number is not None and not attempt.confirms:
                found[self.kinds.get(number[1], "unknown"), attempt.evaluation.verdict] += 1
        return found

    def _ends(self) -> Iterator[str]:
        """Check that every task is done, or not begun for a limit, and for a reason that is true."""
        last = self.run.epochs[-1]
        if last.killed or last.status:
            yield f"the last process ended with status {last.status}: {last.told}"
        for name, reason in self.reasons.items():
            if not reason:
                yield f"{name} is neither done nor left for a limit"
            for part in reason.split("; ") if name != self.failing else [reason]:
                if reason and not self._is_true(name, part):
                    yield f"{name}: not true, or not known to be: {part}"
            confirmed = [a for a in self.attempts[name] if a.confirms]
            right = [a for a in self.attempts[name] if a.evaluation.verdict is Verdict.correct]
            if right and not confirmed and "no evaluation was left" not in reason:
                yield f"{name}: its winner was never confirmed"

    def _is_true(self, task: str, reason: str) -> bool:
        history = searched(self.attempts[task])
        own = [each for each in self.given if each.task == task]
        if task == self.failing:
            return reason.startswith("the task fails: ") and self.failure in reason and not own
        if match := re.fullmatch(r"(\d+) (rounds|candidates)", reason):
            agent = any(each.role == "agent" for each in self.given)
            done = sum(map(was_measured, history)) if agent else len(rounds_of(history))
            return int(match[1]) == self.rounds and done >= self.rounds
        if match := re.fullmatch(r"\$([\d.]+) are spent( on this task)?", reason):
            asked = own if match[2] else self.given
            return sum(self.usd(*each.most) for each in asked) >= float(match[1])
        if match := re.fullmatch(r"(\d+) tokens are spent( on this task)?", reason):
            asked = own if match[2] else self.given
            return sum(sum(each.most) for each in asked) >= int(match[1])
        if re.fullmatch(r"\d+ evaluations are spent, or kept for winners", reason):
            begun = sum(bool(found) for found in self.attempts.values())
            return self.limits.evaluations is not None and self.evaluations + begun >= self.limits.evaluations
        if match := re.fullmatch(r"eager already runs at (\d+)% of what the roofline allows", reason):
            return int(match[1]) >= 90 and not rounds_of(history).rounds and not own
        if match := re.fullmatch(r"the model submitted (its best file|file \d+)", reason):
            return any("submit" in each.calls for each in own)
        if match := re.fullmatch(r"3 answers in a row called no tool", reason):
            return sum(each.is_whole and not each.calls for each in own) >= 3
        if match := re.fullmatch(r"no call of (\d+) answers in a row could be carried out", reason):
            return sum(each.is_whole and bool(each.calls) for each in own) >= int(match[1])
        if match := re.fullmatch(r"(\d+)% of what the roofline allows", reason):
            return any((trusted_share(a.evaluation) or 0) >= 0.95 for a in history)
        if reason == "no evaluation was left to confirm the winner":
            return self.limits.evaluations is not None and self.evaluations >= self.limits.evaluations
        return False

    def _verdicts(self) -> Iterator[str]:
        """Check that what was wrong with a file is what was found to be wrong with it."""
        for name, found in self.attempts.items():
            for attempt in found:
                verdict, reason = attempt.evaluation.verdict, attempt.evaluation.reason
                where = f"{name}, attempt {attempt.round}"
                if not attempt.candidate.usable:
                    if verdict is not Verdict.build_error:
                        yield f"{where}: no file, and its verdict is {verdict}"
                    continue
                number = _NUMBER.search(attempt.candidate.source)
                kind = "right" if number is None else self.kinds.get(number[1], "unknown")
                if number is None and attempt.candidate.author != "builtin":
                    yield f"{where}: a file that nobody gave: {attempt.candidate.source[-200:]!r}"
                    continue
                only_checked = attempt.evaluation.only_checked and kind == "right"
                repeats = verdict is Verdict.build_error and "it repeats the file" in reason
                if not (verdict in _VERDICTS.get(kind, ()) or only_checked or repeats):
                    yield f"{where}: a file that is {kind!r} is {verdict}: {reason[:200]}"

    def _histories(self) -> Iterator[str]:
        """Check that attempts have no holes, and each comes from a recorded answer and known parents."""
        answered = {call.request_sha256 for call in self.calls if _is_answer(call)}
        for name, found in self.attempts.items():
            numbers = [attempt.round for attempt in found if not attempt.confirms]
            if numbers != list(range(len(numbers))):
                yield f"{name}: attempts are numbered {numbers}"
            if any(attempt.confirms for attempt in found[: len(numbers)]):
                yield f"{name}: searched on after its winner was confirmed"
            before: set[str] = set()
            for attempt in found:
                own = attempt.candidate
                if own.request and own.usable and own.request not in answered:
                    yield f"{name}, attempt {attempt.round}: its answer is not recorded"
                if not before.issuperset(own.parents):
                    yield f"{name}, attempt {attempt.round}: it is made from a file that is not there"
                before.add(own.sha256)

    def _accounts(self) -> Iterator[str]:
        """Check that tokens and dollars are those given out, but for calls under way at a kill."""
        for epoch, (given, recorded) in enumerate(self.by_epoch()):
            under_way = self.under_way(epoch)
            for key in given.keys() | recorded.keys():
                mine = _sum(recorded.get(key, ()))
                own = given.get(key, ())
                least = _total([each.least for each in own if key not in under_way])
                most = _total([each.most for each in own])
                if not all(low <= mid <= high for low, mid, high in zip(least, mine, most, strict=True)):
                    faults = [each.fault or "none" for each in own]
                    yield (
                        f"process {epoch}: tokens {mine} were recorded of a request, at least {least} and at "
                        f"most {most} given out (faults: {', '.join(faults)})"
                    )
        for call in self.calls:
            usd = self.usd(call.prompt_tokens, call.completion_tokens)
            if call.usd is None or not math.isclose(call.usd, usd, abs_tol=1e-9):
                yield f"a call of {call.prompt_tokens}, {call.completion_tokens} tokens costs {call.usd}"

    def by_epoch(self) -> list[tuple[dict[str, list[Given]], dict[str, list[LlmCall]]]]:
        """Return what each process was given and has recorded, by the keys of prompts."""
        found = []
        before = 0
        for number, epoch in enumerate(self.run.epochs):
            given, recorded = defaultdict(list), defaultdict(list)
            for each in self.given:
                if each.epoch == number:
                    given[each.key].append(each)
            for call in self.calls[before : epoch.calls]:
                recorded[key_of(_messages(call))].append(call)
            before = epoch.calls
            found.append((dict(given), dict(recorded)))
        return found

    def under_way(self, epoch: int) -> set[str]:
        """Return the keys of the calls that were under way when a process was killed."""
        if not self.run.epochs[epoch].killed:
            return set()
        given, recorded = self.by_epoch()[epoch]
        found = set()
        for key, each in given.items():
            answers = sum(map(_is_answer, recorded.get(key, ())))
            ends_in_failure = not each[-1].is_whole and len(recorded.get(key, ())) == answers
            if sum(one.is_whole for one in each) > answers or ends_in_failure:
                found.add(key)
        return found

    @cached_property
    def lost(self) -> int:
        """Answers that were given out, and not recorded for a kill."""
        found = 0
        for epoch, (given, recorded) in enumerate(self.by_epoch()):
            for key in self.under_way(epoch):
                answers = sum(map(_is_answer, recorded.get(key, ())))
                found += max(0, sum(one.is_whole for one in given[key]) - answers)
        return found

    def _asked_twice(self) -> Iterator[str]:
        """Check that every answer is recorded, but those under way at a kill, and none is asked for again."""
        for epoch, (given, recorded) in enumerate(self.by_epoch()):
            under_way = self.under_way(epoch)
            if len(under_way) > self.calls_at_once:
                yield f"process {epoch}: {len(under_way)} calls were under way when it was killed"
            for key, each in given.items():
                answers = sum(map(_is_answer, recorded.get(key, ())))
                if key not in under_way and sum(one.is_whole for one in each) != answers:
                    yield f"process {epoch}: {answers} answers of {[e.fault for e in each]} are recorded"
        often = Counter(
            _identity(call) for call in self.calls if call.role != "preflight" and _is_answer(call)
        )
        for (task, *_), number in often.items():
            if number > 1:
                yield f"{task}: an answer was paid for {number} times"

    def _answered(self, *roles: str) -> list[LlmCall]:
        return [call for call in self.calls if call.role in roles and _is_answer(call)]

    def _unused(self) -> Iterator[str]:
        """Check that every recorded answer of a coder led to an attempt, unless a limit ended its task.

        One that did not was asked for again in other words.
        """
        used = {attempt.candidate.request for found in self.attempts.values() for attempt in found}
        begun = {
            key_of(_messages(call)[:size]) for call in self.calls for size in range(2, len(_messages(call)))
        }
        for call in self.calls:
            if call.role != "coder" or not _is_answer(call) or call.request_sha256 in used:
                continue
            entry = next(each for each in self.tasks if each.task.id == call.task)
            ended = entry.stop_reason or "pending"
            if key_of(_messages(call)) not in begun and not re.search("spent|over|pending", ended):
                yield f"{call.task}: an answer was paid for and not used, and the task ended with {ended}"

    def _within_limits(self) -> Iterator[str]:
        """Check limits: those of dollars and tokens hold to one call, for which others wait."""
        usd = [call.usd or 0.0 for call in self.calls]
        tokens = [call.prompt_tokens + call.completion_tokens for call in self.calls]
        if self.limits.usd is not None and math.fsum(usd) > self.limits.usd + max(usd):
            yield f"${math.fsum(usd):.4f} of ${self.limits.usd:g} were spent"
        if self.limits.tokens is not None and sum(tokens) > self.limits.tokens + max(tokens):
            yield f"{sum(tokens)} of {self.limits.tokens} tokens were spent"
        if self.limits.evaluations is not None and self.evaluations > self.limits.evaluations:
            yield f"{self.evaluations} of {self.limits.evaluations} evaluations were made"

    def _database(self) -> Iterator[str]:
        connection = sqlite3.connect(self.folder / "run.db")
        try:
            for pragma, right in (("integrity_check", [("ok",)]), ("foreign_key_check", [])):
                if (found := connection.execute(f"PRAGMA {pragma}").fetchall()) != right:
                    yield f"PRAGMA {pragma}: {found}"
        finally:
            connection.close()

    def _summary(self) -> Iterator[str]:
        """Check that the summary adds up, and that the files of winners are what was confirmed."""
        folder = RunFolder(self.folder)
        summary = json.loads(folder.summary.read_text())
        rows = {row["task"]: row for row in (*summary["tasks"], *summary["measures_nothing"])}
        if rows.keys() != {entry.task.id for entry in self.tasks}:
            yield f"the summary has {len(rows)} tasks"
        usd = math.fsum(call.usd or 0.0 for call in self.calls)
        of_tasks = math.fsum(row["usd"] for row in rows.values())
        of_run = math.fsum(call.usd or 0.0 for call in self.calls if call.task is None)
        if not math.isclose(summary["usd"], usd) or not math.isclose(of_tasks + of_run, usd):
            yield f"the summary says ${summary['usd']}, its tasks ${of_tasks}, the calls ${usd}"
        if summary["llm_calls"] != len(self.calls):
            yield f"the summary has {summary['llm_calls']} calls of {len(self.calls)}"
        if sum(summary["outcomes"].values()) != len(summary["tasks"]):
            yield f"the outcomes {summary['outcomes']} are not those of {len(summary['tasks'])} tasks"
        for entry in self.tasks:
            best, row = best_attempt(self.attempts[entry.task.id]), rows.get(entry.task.id, {})
            if row.get("candidate") != (best.candidate.sha256 if best is not None else None):
                yield f"{entry.task.id}: the summary has another winner"
            file = folder.best(entry.task.slug)
            if (
                best is not None
                and not row.get("submitted")
                and best.candidate.source not in file.read_text()
            ):
                yield f"{entry.task.id}: {file} is not its winner"


def _messages(call: LlmCall) -> Sequence[Any]:
    assert isinstance(call.request, dict)
    messages = call.request["messages"]
    assert isinstance(messages, list)
    return messages


def _identity(call: LlmCall) -> tuple[object, ...]:
    """Return what no two answers have in common: in a conversation the place, else the request."""
    assert isinstance(call.request, dict)
    sampling = json.dumps(call.request["sampling"], sort_keys=True)
    if call.role == "agent":
        return call.task, call.request["sample"], sampling
    return call.task, call.request_sha256, sampling


def _is_answer(call: LlmCall) -> bool:
    return not (isinstance(call.response, dict) and "error" in call.response)


def _sum(calls: Sequence[LlmCall]) -> tuple[int, int]:
    return sum(call.prompt_tokens for call in calls), sum(call.completion_tokens for call in calls)


def _total(tokens: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(prompt for prompt, _ in tokens), sum(completion for _, completion in tokens)


def is_pending(entry: TaskRun) -> bool:
    return entry.state is TaskState.pending
