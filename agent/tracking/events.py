"""Events of a run as JSON lines, in events.jsonl of its folder, for `jq` and other programs.

    {"time": "2026-11-27T10:02:11.482+00:00", "event": "call", "task": "level1/softmax", "role": "coder", ...}
    {"time": "2026-11-27T10:02:14.007+00:00", "event": "attempt", "round": 1, "verdict": "correct", ...}
    {"time": "2026-11-27T10:05:40.913+00:00", "event": "done", "task": "level1/softmax", "reason": "4 rounds"}

Prompts, replies and sources are in run.db alone.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.results.store.encoding import json_text
from kernelwright.results.store.lines import append
from kernelwright.results.store.records import LlmCall, RecordedAttempt

EVENTS = "events.jsonl"


class EventsFile:
    """Tracker that appends a line per record."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS

    def call(self, call: LlmCall, at: float) -> None:
        self._append("call", at, call_fields(call))

    def attempt(self, attempt: RecordedAttempt, at: float) -> None:
        self._append("attempt", at, attempt_fields(attempt))

    def done(self, task: str, reason: str, at: float) -> None:
        self._append("done", at, {"task": task, "reason": reason})

    def close(self) -> None:
        pass

    def _append(self, event: str, at: float, fields: Mapping[str, JsonValue]) -> None:
        time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        append(self._path, json_text({"time": time, "event": event, **fields}))


def call_fields(call: LlmCall) -> dict[str, JsonValue]:
    """Return what a call was, without its texts; `finish` is None, and `error` says why, if it failed."""
    response = call.response if isinstance(call.response, dict) else {}
    usage = response.get("usage")
    cached = usage.get("cached_tokens", 0) if isinstance(usage, dict) else 0
    error = f"{response['error']}: {response.get('message', '')}" if "error" in response else None
    return {
        "task": call.task,
        "role": call.role,
        "model": call.model,
        "input_tokens": call.prompt_tokens,
        "cached_tokens": cached,
        "output_tokens": call.completion_tokens,
        "usd": call.usd,
        "seconds": call.seconds,
        "finish": response.get("finish"),
        "error": error,
    }


def attempt_fields(attempt: RecordedAttempt) -> dict[str, JsonValue]:
    """Return what came of an attempt, without its source; None of what was not measured."""
    candidate, evaluation = attempt.candidate, attempt.evaluation
    eager = evaluation.speedup.eager if evaluation.speedup is not None else None
    timing = evaluation.timing
    return {
        "task": attempt.task,
        "round": attempt.round,
        "confirms": attempt.confirms,
        "origin": candidate.origin,
        "author": candidate.author,
        "language": candidate.language,
        "idea": candidate.idea,
        "sha256": candidate.sha256,
        "verdict": evaluation.verdict,
        "reason": evaluation.reason,
        "speedup": eager.median if eager is not None else None,
        "speedup_low": eager.low if eager is not None else None,
        "speedup_high": eager.high if eager is not None else None,
        "speed_of_light_score": score_of(evaluation),
        "candidate_us": timing.candidate_us.median if timing is not None else None,
        "own_kernel_share": evaluation.own_kernel_share,
        "seconds": evaluation.stages.total_s,
    }
