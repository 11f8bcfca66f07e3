"""A language model and its endpoint as bad as real ones get: kernels that work and that do not, and faults.

What it says is drawn from a seed, the request and how often that was asked. Each answer is written into a log
before it is given: what is wrong with it, and what it costs, between bounds where no tokens are counted. So
what a run has recorded can be held against what was given out.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from kernelwright.agent.llm.endpoint.fake_endpoint import Answer, ErrorResponse, RawResponse, Reply
from kernelwright.agent.llm.endpoint.scripted_model import CORRECTION, FILE, TASK, advice_on
from kernelwright.kernelbench.records import Record

Kind = str  # of a file: what is wrong with it, or "right"
_TURNS = 5  # of a conversation, after which a file is submitted
_CHARACTERS_PER_TOKEN = 3.6  # as the server counts
_BOUNDS = (5.0, 2.0)  # characters per token of a client's estimates, most and least


class Given(Record):
    """A request as it was answered. Tokens of prompt and completion: at least and at most."""

    epoch: int  # number of the process that asked
    key: str  # the same for the same prompt
    role: str
    task: str | None
    fault: str  # of the endpoint; "" for none
    files: dict[str, Kind]  # in it, by the numbers in their last lines
    calls: tuple[str, ...] = ()  # names of the tools that it calls
    is_whole: bool
    least: tuple[int, int] = (0, 0)
    most: tuple[int, int] = (0, 0)


def key_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the key of a prompt, by its messages as they are sent."""
    return hashlib.sha256(json.dumps(list(messages), sort_keys=True).encode()).hexdigest()[:16]


def broken(files: Sequence[str]) -> dict[Kind, list[str]]:
    """Return a task's files by their kinds; `files`: as `files_of` has them.

    Kernels that crash or never end do so when they are called. One cheats: it keeps its first results.
    """
    without = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    if len(files) < 5:
        return {"without kernels": [without]}
    plain, uncompiled, default, wrong, *others = files
    return {
        "right": [plain, default, *others],
        "wrong": [wrong],
        "does not compile": [uncompiled],
        "crashes": [_in_kernel(default, "*(volatile int*)8 = 1;")],
        "never ends": [_in_kernel(default, "for (volatile long i = 0;; i = i + 1) {}")],
        "cheats": [default + _CHEAT],
        "is no Python": [default.replace("def forward(", "def forward((", 1)],
        "without kernels": [without],
    }


def _in_kernel(file: str, statement: str) -> str:
    before, kernel, rest = file.partition('extern "C"')
    head, brace, body = rest.partition("{")
    return f"{before}{kernel}{head}{brace} {statement}{body}"


_CHEAT = """

_kept = {}
_computed = ModelNew.forward


def _forward(self, *inputs):
    where = inputs[0].data_ptr()
    if where not in _kept:
        _kept[where] = _computed(self, *inputs)
    return _kept[where]


ModelNew.forward = _forward
"""
_KINDS: dict[Kind, float] = {
    "right": 9, "wrong": 2, "does not compile": 2, "crashes": 1, "never ends": 0.5, "cheats": 1,
    "is no Python": 0.7, "without kernels": 0.7,
}  # fmt: skip
_MOST_ENDLESS = 1  # of the files never ends: it costs a minute or two
# What is said in place of a file, or around it.
_MANNERS: dict[str, float] = {
    "fenced": 10, "in a list": 1, "fenced as C++": 1, "after a thought": 1, "no file": 0.7, "nothing": 0.7,
    "cut off": 1, "cut off in a thought": 0.7, "called as a tool": 0.4, "twice": 0.5,
}  # fmt: skip


class FaultyModel:
    """A script for a FakeEndpoint. `epoch` is written into the log; `heard` is told of every request."""

    def __init__(
        self,
        files: Mapping[str, Mapping[Kind, Sequence[str]]],
        log: Path,
        seed: int,
        rate: float,
        refuses: str,
        silence_s: float,
    ) -> None:
        """`rate`: of faults, for each request; `refuses`: a parameter; `silence_s`: the client's patience."""
        self.files, self.log, self.seed, self.rate, self.refuses = files, log, seed, rate, refuses
        self._silence_s = silence_s
        self.epoch = 0
        self.heard: Callable[[int, bool, str], None] = lambda number, is_whole, role: None
        self.outages: dict[int, range] = {}  # by epoch, the numbers of the requests that nobody answers
        self._lock = threading.Lock()
        self.given = read_log(log)
        self._asked = Counter(each.key for each in self.given)
        self._number = 0
        self._endless = sum("never ends" in each.files.values() for each in self.given)

    def begin(self, epoch: int) -> None:
        self.epoch, self._number = epoch, 0

    def __call__(self, body: dict[str, Any], number: int) -> Answer:
        with self._lock:
            key = key_of(body["messages"])
            chance = Random(f"{self.seed} {key} {self._asked[key]}")
            self._asked[key] += 1
            asked, self._number = self._number, self._number + 1
            answer, given = self._answered(body, key, chance, asked in self.outages.get(self.epoch, ()))
            self.given.append(given)
            with self.log.open("a") as log:
                log.write(given.model_dump_json() + "\n")
        self.heard(asked, given.is_whole, given.role)
        return answer

    def _answered(self, body: dict[str, Any], key: str, chance: Random, outage: bool) -> tuple[Answer, Given]:
        system, user = (str(message["content"]) for message in body["messages"][:2])
        found = TASK.search(user)
        role = "agent" if "tools" in body else "coder" if "`ModelNew`, which" in system else "judge"
        role = "preflight" if '{"ready": true}' in user else role
        given = Given(
            epoch=self.epoch, key=key, role=role, task=found[1] if found else None, fault="", files={},
            is_whole=False,
        )  # fmt: skip
        if outage and role != "preflight":
            return ErrorResponse(503, "no healthy upstream"), given.model_copy(update={"fault": "outage"})
        if (refusal := self._refusal(body)) is not None:
            return refusal, given.model_copy(update={"fault": f"refuses {self.refuses}"})
        reply, files = self._reply(role, given.task, body, user, chance)
        counted = _tokens(body, reply, _CHARACTERS_PER_TOKEN)
        names = ("prompt_tokens", "completion_tokens")
        usage = dict(zip(names, counted, strict=True)) | {"total_tokens": sum(counted)}
        reply = replace(reply, usage=usage)
        fault = ""
        answer: Answer = reply
        if chance.random() < self.rate:
            faults = _REFUSALS if role == "preflight" else (*_REFUSALS, *_BREAKS, *_ODDITIES)
            fault = chance.choice(faults)
            answer = self._spoilt(reply, fault, chance)
        is_whole = fault in ("", *_ODDITIES)
        uncounted = not is_whole or fault.startswith("no usage") or self.refuses == "stream_options"
        least, most = (_tokens(body, reply, rate) if uncounted else counted for rate in _BOUNDS)
        update = {
            "fault": fault,
            "is_whole": is_whole,
            "files": files if is_whole else {},
            "calls": tuple(name for name, _ in reply.calls) if is_whole else (),
            "least": least if is_whole else (0, 0),
            "most": (0, 0) if fault in _REFUSALS else most,
        }
        if self.refuses == "stream_options" and isinstance(answer, Reply):
            answer = replace(answer, usage=None)
        return answer, given.model_copy(update=update)

    def _refusal(self, body: Mapping[str, Any]) -> ErrorResponse | None:
        name = self.refuses
        if name not in body:
            return None
        if name == "stream_options":
            detail = [
                {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
            ]
            return ErrorResponse(422, body={"object": "error", "message": {"detail": detail}})
        if name == "max_tokens":
            return ErrorResponse(
                400, f"Unsupported parameter: '{name}'. Use 'max_completion_tokens' instead."
            )
        return ErrorResponse(400, f"{name} is not supported by this model", code="unsupported_parameter")

    def _spoilt(self, reply: Reply, fault: str, chance: Random) -> Answer:
        """Return the answer with a fault."""
        match fault:
            case "error instead of an answer":
                error = {"error": {"code": 429, "message": "Rate limit exceeded"}}
                return RawResponse(json.dumps(error).encode(), "application/json")
            case "no answer at all":
                return replace(reply, breaks_after=0)
            case "breaks off":
                return replace(reply, breaks_after=chance.randint(1, reply.pieces), usage=None)
            case "falls silent":
                stalls_s = 1.5 * self._silence_s
                return replace(
                    reply, breaks_after=chance.randint(1, reply.pieces), stalls_s=stalls_s, usage=None
                )
            case "malformed event":
                return RawResponse(b'data: {"choices": [{"delta": {"content": "half a chu\n\n')
            case "error in the middle":
                return replace(
                    reply, chunks=({**_chunk("I will"), "error": None}, _PROVIDER_ERROR), is_ended=False
                )
            case "no usage":
                return replace(reply, usage=None)
            case "no usage, but nulls":
                return replace(reply, usage={"prompt_tokens": None, "completion_tokens": None})
            case "no finish reason":
                said = reply.finish == "stop" and (reply.text or reply.calls)
                return replace(reply, finish=None if said else reply.finish)
            case "no end of the stream":
                return replace(reply, is_ended=False)
            case "in one piece":
                return replace(reply, pieces=1)
            case "duplicate ids":
                return replace(reply, call_id="call")
        return _STATUSES[fault]

    def _reply(
        self, role: str, task: str | None, body: Mapping[str, Any], user: str, chance: Random
    ) -> tuple[Reply, dict[str, Kind]]:
        if role == "preflight":
            return Reply('{"ready": true}'), {}
        if role == "judge":
            asks = CORRECTION if "critical_issue" in str(body["messages"][0]["content"]) else advice_on(user)
            return Reply(_judged(json.dumps(asks), chance)), {}
        assert task is not None, user
        if role == "agent":
            return self._called(task, body["messages"], chance)
        file, known = self._file(task, chance)
        return _said(file, known, chance)

    def _file(self, task: str, chance: Random) -> tuple[str, dict[str, Kind]]:
        """Return a file, and its kind by the number in its last line."""
        files = self.files[task]
        endless = self._endless >= _MOST_ENDLESS
        weights = {k: w for k, w in _KINDS.items() if k in files and not (endless and k == "never ends")}
        [kind] = chance.choices(list(weights), list(weights.values()))
        self._endless += kind == "never ends"
        number = str(chance.getrandbits(32))
        return f"{chance.choice(files[kind])}# {number}\n", {number: kind}

    def _called(
        self, task: str, messages: Sequence[Mapping[str, Any]], chance: Random
    ) -> tuple[Reply, dict[str, Kind]]:
        """Return the calls of the next turn of a conversation."""
        turn = sum(message["role"] == "assistant" for message in messages)
        told = [int(n) for message in messages for n in FILE.findall(str(message["content"] or ""))]
        if chance.random() < 0.12:
            return Reply(chance.choice(("I think that a tile of 64 is best.", ""))), {}
        if turn >= _TURNS:
            return Reply("", calls=(("submit", {}),)), {}
        if turn == 0:
            return Reply("", calls=(("compile_reference", {}), ("read_notes", {"topic": "examples"}))), {}
        calls: list[tuple[str, dict[str, Any] | str]] = []
        files: dict[str, Kind] = {}
        for _ in range(chance.choice((1, 1, 2))):
            file, known = self._file(task, chance)
            name = chance.choice(("check", "measure", "measure"))
            files |= known
            calls.append((name, {"file": file, "idea": "another schedule"}))
        extra: list[tuple[str, dict[str, Any] | str]] = [
            ("measure", '{"file": "import tor'),
            ("run_shell", {"command": "ls"}),
            ("measure", {"base": 99}),
            ("check", {"file": 7}),
            ("profile", {"number": told[-1] if told else 0}),
            ("read_notes", {"topic": "tried"}),
        ]
        if chance.random() < 0.5:
            calls.append(chance.choice(extra))
        return Reply("", calls=tuple(calls)), files


def _said(file: str, known: dict[str, Kind], chance: Random) -> tuple[Reply, dict[str, Kind]]:
    """Return an answer with this file, or what a model says in its place."""
    [manner] = chance.choices(list(_MANNERS), list(_MANNERS.values()))
    fenced = f"Idea: another schedule\n\n```python\n{file}```\n"
    match manner:
        case "in a list":
            fenced = "1. Here:\n\n" + re.sub("^", "   ", fenced, flags=re.MULTILINE)
        case "fenced as C++":
            fenced = fenced.replace("```python", "```cpp")
        case "after a thought":
            fenced = f"<think>\nmaybe\n```python\nclass ModelNew: pass\n```\n</think>\n{fenced}"
        case "no file":
            return Reply("I can't help with that."), {}
        case "nothing":
            return Reply("", pieces=1), {}
        case "cut off":
            return Reply(fenced[: len(fenced) // 2], finish="length"), {}
        case "cut off in a thought":
            return Reply(f"<think>\n{fenced}but wait", finish="length"), {}
        case "called as a tool":
            return Reply("", calls=(("python", {"code": file}),)), known
        case "twice":
            fenced += f"\nThe same once more:\n{fenced}"
    return Reply(fenced, pieces=20), known


def _judged(text: str, chance: Random) -> str:
    """Return a judge's answer, which some write so that it cannot be read."""
    return chance.choice(
        (
            *(text,) * 5, f"```json\n{text}\n```", f'It is {{"n": 1}}.\n{text}', text[:-1] + ",}",
            text[: len(text) // 2], "The memory is the bottleneck.", "",
        )
    )  # fmt: skip


def _tokens(body: Mapping[str, Any], reply: Reply, characters: float) -> tuple[int, int]:
    """Return the tokens of a prompt and its answer, at so many characters a token."""
    asked = len(json.dumps(body.get("tools", "")))
    for message in body["messages"]:
        calls = message.get("tool_calls", ())
        asked += len(message["content"] or "") + sum(len(json.dumps(call["function"])) for call in calls)
    told = reply.text + reply.reasoning + "".join(name + json.dumps(given) for name, given in reply.calls)
    return int(asked / characters), int(len(told) / characters) + 1


def _chunk(content: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


_PROVIDER_ERROR = _chunk("") | {"error": {"code": 502, "message": "Provider disconnected"}}
_STATUSES: dict[str, ErrorResponse] = {
    "429": ErrorResponse(429, "slow down"),
    "429, Retry-After": ErrorResponse(429, "slow down", headers={"Retry-After": "1"}),
    "429, retry-after-ms": ErrorResponse(429, "slow down", headers={"retry-after-ms": "200"}),
    "429, a date": ErrorResponse(429, headers={"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}),
    "500": ErrorResponse(500, "internal error"),
    "502, a page": ErrorResponse(502, body="<html><body>502 Bad Gateway</body></html>"),
    "529": ErrorResponse(529, "overloaded"),
}
_REFUSALS = (*_STATUSES, "error instead of an answer")
_BREAKS = ("no answer at all", "breaks off", "falls silent", "malformed event", "error in the middle")
_ODDITIES = (
    *("no usage", "no usage, but nulls", "no finish reason", "no end of the stream", "in one piece"),
    "duplicate ids",
)


def read_log(path: Path) -> list[Given]:
    return list(_lines(path)) if path.exists() else []


def _lines(path: Path) -> Iterator[Given]:
    for line in path.read_text().splitlines():
        yield Given.model_validate_json(line)
