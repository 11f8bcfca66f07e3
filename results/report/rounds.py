"""One task's rounds in full: what was asked and answered, what came of it, and what it cost.

Calls are stored without their round. A coder's call has the number of its round as its sample; a judge's
leads to the rounds that followed its advice:

    coder, sample 2   ──► round 2
    judge, sample 2   ──► rounds 2 and later whose advice it gave, else round 2
"""

import difflib
import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Advice, Evaluation, Record
from kernelwright.profiling.records import Profile
from kernelwright.results.store.records import LlmCall, RecordedAttempt

_LONGEST = 5000  # lines of a file that is compared with another; beyond it, that takes minutes


class CallReport(Record):
    """One request to a model and its answer, as people read them."""

    role: str
    model: str
    messages: tuple[tuple[str, str], ...]  # (role, text)
    repeats: int  # of the messages, at their beginning, that the round's call before it had
    reply: str
    reasoning: str
    error: str  # why there is no answer; empty if there is one
    finish: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    usd: float | None  # None: the price is not known
    seconds: float
    attempts: int


class RoundReport(Record):
    """One round of a task."""

    task: str
    round: int
    author: str
    language: str
    idea: str
    parent: int | None  # round of the file that it was made from; None if it was not made from one
    advice: Advice | None
    calls: tuple[CallReport, ...]
    source: str
    diff: str  # unified, to the parent's file; empty without one
    evaluation: Evaluation
    profile: Profile | None
    confirmations: tuple[Evaluation, ...]  # of the same file, measured once more at the end

    @property
    def tokens(self) -> int:
        return sum(call.prompt_tokens + call.completion_tokens for call in self.calls)

    @property
    def usd(self) -> float | None:
        return sum_usd(self.calls)


def sum_usd(calls: Sequence[CallReport]) -> float | None:
    """Return the cost of calls; None if the price of one is unknown."""
    prices = [call.usd for call in calls if call.usd is not None]
    return sum(prices) if len(prices) == len(calls) else None


def rounds(attempts: Sequence[RecordedAttempt], calls: Sequence[LlmCall]) -> list[RoundReport]:
    """Return the rounds of a task, given all its attempts and calls."""
    of_rounds = calls_by_round(attempts, calls)
    return [
        _round(attempt, attempts, of_rounds.get(attempt.round, []))
        for attempt in attempts
        if not attempt.confirms
    ]


def round_of(attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> int | None:
    """Return the round in which an attempt's file was first tried; None if it was none of a round."""
    sha256 = attempt.candidate.sha256
    same = (other for other in attempts if not other.confirms and other.candidate.sha256 == sha256)
    return next((other.round for other in same), None)


def numbering(attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> str:
    """Return `3`, `3 (repair)`; of a measurement at the end the round whose file it measures: `3, again`."""
    if not attempt.confirms:
        origin = attempt.candidate.origin
        return str(attempt.round) if origin == "round" else f"{attempt.round} ({origin})"
    number = round_of(attempt, attempts)
    return f"{number}, again" if number is not None else f"{attempt.candidate.author}, at the end"


def parent_of(attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> RecordedAttempt | None:
    """Return the earlier attempt whose file an attempt's file was made from; None if there is none."""
    parents = set(attempt.candidate.parents)
    earlier = (other for other in attempts if other.id < attempt.id and not other.confirms)
    return next((other for other in earlier if other.candidate.sha256 in parents), None)


def calls_by_round(
    attempts: Sequence[RecordedAttempt], calls: Sequence[LlmCall]
) -> dict[int | None, list[LlmCall]]:
    """Return a task's calls by the round that they served; None has those that led to no round."""
    searched = [attempt for attempt in attempts if not attempt.confirms]
    asked = {a.candidate.request: a.round for a in searched if a.candidate.request}
    begun = [a.round for a in searched if a.candidate.origin == "round"]  # by the sample of a round's calls
    found: dict[int | None, list[LlmCall]] = {}
    for call in calls:
        sample = _object(call.request).get("sample")
        if not isinstance(sample, int):
            found.setdefault(None, []).append(call)
            continue
        in_round = begun[sample] if 0 <= sample < len(begun) else None
        number = asked.get(call.request_sha256, in_round)
        if call.role == "agent":  # whose sample is a place in a conversation
            number = next((a.round for a in searched if _called_for(call, a, attempts)), None)
        elif call.role == "judge":
            text = str(_object(call.response).get("text", ""))
            later = (a for a in searched if a.round >= sample and a.advice is not None)
            number = next((a.round for a in later if a.advice and _gave(text, a.advice)), number)
        found.setdefault(number, []).append(call)
    return found


def _called_for(call: LlmCall, attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt]) -> bool:
    """Return True if a call of tools in an answer sends the file of an attempt, or edits that make it."""
    parent = parent_of(attempt, attempts)
    calls = _object(call.response).get("tool_calls")
    for each in calls if isinstance(calls, list) else ():
        try:
            given = json.loads(str(_object(_object(each).get("function")).get("arguments")))
        except (ValueError, RecursionError):
            continue
        given = _object(given)
        if (file := given.get("file")) is not None and str(file).strip() == attempt.candidate.source.strip():
            return True
        edits = given.get("edits")
        if parent is not None and given.get("base") == parent.round and isinstance(edits, list) and edits:
            return all(str(_object(edit).get("replace")) in attempt.candidate.source for edit in edits)
    return False


def named(task: str, known: Sequence[str]) -> str:
    """Return the id of the task that a user means: its id, or the end of only one of them.

    Raises UsageError.
    """
    ends = [name for name in known if name == task or name.endswith((f"/{task}", f":{task}"))]
    if task in known or len(ends) == 1:
        return task if task in known else ends[0]
    if ends:
        raise UsageError(f"'{task}' are several tasks of this run", f"choose {', '.join(ends)}")
    near = difflib.get_close_matches(task, [*known, *(name.rpartition("/")[2] for name in known)], 3)
    some = ", ".join(near or known[:8]) + (", …" if not near and len(known) > 8 else "")
    raise UsageError(
        f"the run has no task '{task}'",
        f"did you mean {some}?"
        if near
        else f"give one of its {len(known)} tasks, by its id or the end: {some}",
    )


def numbered(number: int, found: Sequence[RoundReport]) -> RoundReport:
    """Return the round of that number. Raises UsageError if there is none."""
    for each in found:
        if each.round == number:
            return each
    if not found:
        raise UsageError("this task has no rounds yet", "leave out --round")
    first, last = found[0].round, found[-1].round
    raise UsageError(f"this task has no round {number}", f"give --round {first} to {last}")


def _round(
    attempt: RecordedAttempt, attempts: Sequence[RecordedAttempt], calls: Sequence[LlmCall]
) -> RoundReport:
    candidate, parent = attempt.candidate, parent_of(attempt, attempts)
    same = candidate.sha256
    return RoundReport(
        task=attempt.task,
        round=attempt.round,
        author=candidate.author,
        language=candidate.language,
        idea=candidate.idea,
        parent=parent.round if parent is not None else None,
        advice=attempt.advice,
        calls=_shown(calls),
        source=candidate.source,
        diff=_diff(parent, attempt) if parent is not None else "",
        evaluation=attempt.evaluation,
        profile=attempt.profile,
        confirmations=tuple(
            other.evaluation for other in attempts if other.confirms and other.candidate.sha256 == same
        ),
    )


def _diff(parent: RecordedAttempt, attempt: RecordedAttempt) -> str:
    """Return the unified diff of two files; a note for files too long to be compared."""
    before, after = (one.candidate.source.splitlines() for one in (parent, attempt))
    if max(len(before), len(after)) > _LONGEST:
        return f"(the files have more than {_LONGEST} lines)"
    names = (f"round {parent.round}", f"round {attempt.round}")
    return "\n".join(difflib.unified_diff(before, after, *names, lineterm=""))


def _shown(calls: Sequence[LlmCall]) -> tuple[CallReport, ...]:
    shown: list[CallReport] = []
    for call in calls:
        messages = _messages(_object(call.request).get("messages"))
        before = [one.messages for one in shown if one.role == call.role]
        repeats = max((len(one) for one in before if messages[: len(one)] == one), default=0)
        shown.append(_call(call, messages, repeats))
    return tuple(shown)


def _call(call: LlmCall, messages: tuple[tuple[str, str], ...], repeats: int) -> CallReport:
    response = _object(call.response)
    error, usage = response.get("error"), _object(response.get("usage"))
    cached, attempts = usage.get("cached_tokens"), response.get("attempts")
    return CallReport(
        role=call.role,
        model=call.model,
        messages=messages,
        repeats=repeats,
        reply=str(response.get("text") or "") + _rest(response, "tool_calls"),
        reasoning=str(response.get("reasoning") or ""),
        error=f"{error}: {response.get('message', '')}" if error else "",
        finish=str(response.get("finish") or ""),
        prompt_tokens=call.prompt_tokens,
        cached_tokens=cached if isinstance(cached, int) else 0,
        completion_tokens=call.completion_tokens,
        usd=call.usd,
        seconds=call.seconds,
        attempts=attempts if isinstance(attempts, int) else 1,
    )


def _messages(messages: JsonValue) -> tuple[tuple[str, str], ...]:
    if not isinstance(messages, list):
        return ()
    return tuple((str(_object(m).get("role", "")), _message(_object(m))) for m in messages)


def _message(message: Mapping[str, JsonValue]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, indent=2) if content else ""
    return text + _rest(message, "tool_calls")


def _rest(holder: Mapping[str, JsonValue], key: str) -> str:
    return "\n" + json.dumps(holder[key], indent=2) if holder.get(key) else ""


def _gave(reply: str, advice: Advice) -> bool:
    """Return True if a judge's reply, some JSON, holds this advice."""
    plan = advice.plan
    written = (json.dumps(plan, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return len(plan) > 0 and any(text in reply for text in written)


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}
