"""Client of `kernelwright serve evaluator`, of Python's standard library alone, for a trainer's environment.

    client = RewardClient("http://gpu7:8900", token, scheme="kevin")
    graded = client.grade(row["answer"], reply)             # graded.reward is None: there is no verdict
    rollout = client.begin(row["answer"], turns=4)          # rollout.messages: the prompt
    rollout = client.answer(rollout, reply)                 # rollout.turns, rollout.messages, rollout.ended

**No verdict is not a reward of 0.** `Graded.known` raises UnknownRewardError where nothing is known of it:
the server's own machinery failed, or it did not answer for `away_s`. A request that the server refuses,
whoever sends it again, is a RefusedError: a wrong token, a task that is not allowed.
"""

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

R = TypeVar("R")
_WAIT_S = 20.0  # that one request waits for a result
_TURN_S = 7200.0  # for a turn of a rollout, which is answered once it is evaluated
_ANSWER_S = 30.0
_PAUSES_S = (0.2, 15.0)  # the first, and the longest
_FULL, _UNKNOWN = 429, 404
_ENDED = ("done", "failed", "cancelled")
_MOST_CHARACTERS = 1_000_000  # of a reply; an endless one is cut there
_MOST_BYTES = 64 << 20  # of an answer


class UnknownRewardError(Exception):
    """No verdict on a reply: nothing is known of it, and nothing is to be learned from it."""


class RefusedError(Exception):
    """A request that the server refuses, with what to do about it. `status`: of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Graded:
    """Facts about a reply. `speedup`: the lower bound over eager PyTorch; None if it was not timed."""

    reward: float | None
    verdict: str | None
    reason: str = ""
    speedup: float | None = None

    @property
    def known(self) -> float:
        """The reward. Raises UnknownRewardError."""
        if self.reward is None:
            raise UnknownRewardError(self.reason or "there is no verdict")
        return self.reward

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics, always under the same keys."""
        return {"correct": float(self.verdict == "correct"), "speedup": self.speedup or 0.0}


@dataclass(frozen=True)
class ServedRollout:
    """State of a task in several turns. `messages`: the prompt to answer; empty once it has `ended`.

    `returns`: the credit of each turn, with later rewards in it, once it has ended.
    """

    id: str
    turns: tuple[Graded, ...]
    messages: tuple[dict[str, str], ...]
    ended: str
    returns: tuple[float | None, ...] = ()

    @property
    def feedback(self) -> str:
        """Text to append to a conversation for the next turn: the outcome of the last one, and the task."""
        return self.messages[-1]["content"] if self.messages else ""

    @property
    def total(self) -> float:
        """The return of the whole rollout: that of its first turn. Raises UnknownRewardError."""
        if not self.returns or self.returns[0] is None:
            reasons = [turn.reason for turn in self.turns if turn.reward is None]
            raise UnknownRewardError(reasons[0] if reasons else "the rollout has not ended")
        return self.returns[0]


@dataclass
class RewardClient:
    """Client of the server at `url`; thread-safe. `scheme`: of the reward, by name or as its terms."""

    url: str
    token: str | None = field(default=None, repr=False)
    scheme: str | Mapping[str, Any] = "log-speedup"
    effort: str | None = None
    away_s: float = 300.0  # that the server may be away, such as to be started again

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(1024, "kernelwright")  # all but a few of them wait

    def grade(self, task: str, reply: str) -> Graded:
        """Return what comes of a reply to a task: an id, or a row's `answer`. Raises RefusedError."""
        asked = {
            "task": _task(task),
            "reply": _text(reply),
            "scheme": self.scheme,
            "effort": self.effort,
            "key": uuid.uuid4().hex,
        }
        try:
            found = self._evaluated(asked)
        except UnknownRewardError as error:
            return Graded(None, None, str(error))
        reason = found["reason"] or ("" if found["reward"] is not None else found["state"])
        return Graded(found["reward"], found["verdict"], reason, _low(found["speedup"]))

    def begin(self, task: str, turns: int = 1) -> ServedRollout:
        """Begin a rollout of at most `turns` turns. Raises RefusedError, UnknownRewardError."""
        asked = {"task": _task(task), "turns": turns, "scheme": self.scheme, "effort": self.effort}
        return _rollout(self._again("POST", "/v1/rollouts", asked))

    def answer(self, rollout: ServedRollout, reply: str) -> ServedRollout:
        """Return the state after a reply to the prompt. Raises RefusedError, UnknownRewardError."""
        asked = {"reply": _text(reply), "turn": len(rollout.turns)}
        return _rollout(self._again("POST", f"/v1/rollouts/{rollout.id}/replies", asked, within_s=_TURN_S))

    async def apart(self, function: Callable[..., R], *arguments: Any) -> R:
        """Call one of these methods in a thread: `await client.apart(client.grade, task, reply)`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _evaluated(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        found = self._again("POST", "/v1/evaluations", asked, _WAIT_S)
        while found["state"] not in _ENDED:
            try:
                found = self._again("GET", f"/v1/evaluations/{found['id']}", None, _WAIT_S)
            except RefusedError as error:
                if error.status != _UNKNOWN:
                    raise
                found = self._again("POST", "/v1/evaluations", asked, _WAIT_S)  # it has lost its database
        return found

    def _again(
        self, method: str, path: str, sent: Any, wait_s: float = 0.0, within_s: float = 0.0
    ) -> dict[str, Any]:
        """Send a request until it is answered. Raises RefusedError, UnknownRewardError."""
        pause, away_since = _PAUSES_S[0], None
        query = f"?wait={wait_s:g}" if wait_s else ""
        while True:
            try:
                return self._once(method, path + query, sent, max(wait_s, within_s) + _ANSWER_S)
            except urllib.error.HTTPError as error:
                problem = _problem(error)
                if error.code != _FULL and error.code < 500:
                    raise RefusedError(f"{self.url}: {problem}", error.code) from None
                why, after = problem, error.headers.get("Retry-After")
                full = error.code == _FULL
            except (OSError, http.client.HTTPException, ValueError) as error:  # no answer, or none in JSON
                why, after, full = str(error) or type(error).__name__, None, False
            now = time.monotonic()
            away_since = None if full else away_since or now
            if away_since is not None and now - away_since > self.away_s:
                raise UnknownRewardError(f"{self.url} does not answer: {why}")
            time.sleep(_pause(after, pause))
            pause = min(2 * pause, _PAUSES_S[1])

    def _once(self, method: str, path: str, sent: Any, within_s: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        body = json.dumps(sent).encode() if sent is not None else None
        request = urllib.request.Request(self.url.rstrip("/") + path, body, headers, method=method)
        until = time.monotonic() + within_s + _ANSWER_S
        with urllib.request.urlopen(request, timeout=within_s) as response:
            found: dict[str, Any] = json.loads(_body(response, until))
        return found


def _task(text: str) -> Any:
    """Return a task as the server takes it: an id, or the record that a row's `answer` holds as JSON."""
    return json.loads(text) if text.startswith("{") else text


def _text(reply: str) -> str:
    """Return a reply that JSON can hold: not endless, without half characters."""
    return reply[:_MOST_CHARACTERS].encode("utf-8", "replace").decode()


def _body(response: Any, until: float) -> bytes:
    """Return what an answer holds. Raises ValueError for one that does not end."""
    found = bytearray()
    while piece := response.read1(1 << 16):
        found += piece
        if len(found) > _MOST_BYTES or time.monotonic() > until:
            raise ValueError("its answer does not end")
    return bytes(found)


def _low(speedup: Mapping[str, Any] | None) -> float | None:
    eager = speedup.get("eager") if speedup else None
    return eager["low"] if eager else None


def _rollout(found: Mapping[str, Any]) -> ServedRollout:
    turns = tuple(
        Graded(
            turn["reward"],
            turn["outcome"]["verdict"],
            turn["outcome"]["reason"],
            _low(turn["outcome"]["speedup"]),
        )
        for turn in found["turns"]
    )
    messages = tuple({"role": m["role"], "content": m["content"]} for m in found["messages"] or ())
    return ServedRollout(found["id"], turns, messages, found["ended"], tuple(found["returns"] or ()))


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        problem = json.loads(_body(error, time.monotonic() + _ANSWER_S))
        return f"{problem['error']} — {problem['fix']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"


def _pause(after: str | None, otherwise: float) -> float:
    try:
        return min(max(float(after or ""), 0.0), 60.0)
    except ValueError:
        return otherwise
