"""A script for the fake endpoint that submits kernels of the builtin coder, some of which it has broken.

Replies are fixed, so a run with it can be repeated and its cost is known; the kernels are real. For each task
it submits, round by round: a plain schedule, a file that does not compile, the default schedule, a file that
computes something else, and then other schedules. As a judge it gives one piece of valid advice, and rests it
on a metric in its prompt. Given tools, it checks files before it measures them, profiles one, and submits.
"""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.compile import compile_graph
from kernelwright.agent.builtin.ir import graph as graphs
from kernelwright.agent.builtin.schedule import Schedule, legal
from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, Reply
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.evaluator import Limits
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.records import Task

TASK = re.compile(r"^# The task: (\S+)$", re.MULTILINE)
FILE = re.compile(r"^File (\d+)\.", re.MULTILINE)
_METRIC = re.compile(r"^- (\S+) = (\S+) ", re.MULTILINE)
_SEED = 20  # of the other schedules
_OTHERS = 8


class ScriptedModel:
    """The script of a coder and a judge for these tasks."""

    def __init__(self, tasks: Sequence[Task], cache: Path, latency_s: float = 0.0, pieces: int = 50) -> None:
        """Write all kernels beforehand. `latency_s`: seconds of a reply, streamed in so many `pieces`."""
        self._latency_s, self._pieces = latency_s, pieces
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()  # by task
        with WorkerPool(threads=1, cache=cache, limits=Limits()) as pool:
            self._files = {task.id: files_of(task, trace(pool, task)) for task in tasks}

    def restart(self) -> None:
        """Begin again with the first file of each task."""
        self._requests.clear()

    def __call__(self, body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        system, user = (message["content"] for message in body["messages"][:2])
        if '{"ready": true}' in user:  # a preflight
            return Reply('{"ready": true}')
        if "tools" in body:
            task = TASK.search(user)
            if task is not None and task[1] in self._files:
                told = [int(n) for m in body["messages"] for n in FILE.findall(m["content"] or "")]
                calls = self._next_calls(task[1], told[-1] if told else 0)
                return Reply("", calls=calls, pieces=self._pieces, pause_s=self._latency_s / self._pieces)
        # The judge's prompts name the keys of the JSON that they ask for; the coder's has none.
        if "critical_issue" in system:
            text = json.dumps(CORRECTION)
        elif "predicted_gain" in system:
            text = json.dumps(advice_on(user))
        else:
            task = TASK.search(user)
            if task is None or task[1] not in self._files:
                return ErrorResponse(400, f"there are kernels for {', '.join(self._files)} alone")
            text = f"```python\n{self._next_file(task[1])}```\n"
        return Reply(text, pieces=self._pieces, pause_s=self._latency_s / self._pieces)

    def _next_calls(self, task: str, last: int) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Return the next calls for a task; `last`: the number of the file that was told of last."""
        with self._lock:
            number = self._requests[task]
            self._requests[task] += 1
        files = self._files[task]
        if len(files) == 1:
            return (("submit", {"file": files[0]}),)
        plain, uncompiled, default, wrong, *others = files
        script: list[tuple[tuple[str, dict[str, Any]], ...]] = [
            (("compile_reference", {}), ("read_notes", {"topic": "examples"})),
            (("check", {"file": uncompiled}), ("check", {"file": wrong})),
            (("check", {"file": plain}),),
            (("measure", {"base": last}), ("measure", {"file": default, "idea": "the default schedule"})),
            (("profile", {"number": last}),),
            *((("measure", {"file": file}),) for file in others),
        ]
        return script[number] if number < len(script) else (("submit", {}),)

    def _next_file(self, task: str) -> str:
        with self._lock:
            number = self._requests[task]
            self._requests[task] += 1
        return self._files[task][number % len(self._files[task])]


def files_of(task: Task, graph: graphs.Graph) -> list[str]:
    """Return candidate files for a task, in the order in which they are submitted.

    A plain schedule, one that does not compile, the default, a wrong one, and others; one alone where the
    builtin coder has no kernels.
    """
    coder = BuiltinCoder(lambda _: graph)
    first = coder.propose(task, [], None)
    if first.language != "cpp":
        return [first.source]

    def written(**moves: str) -> str:
        schedule = Schedule.from_dict({**first.schedule, **moves})
        return compile_graph(graph, task.source, schedule, Cpp()).source

    plain = {
        knob: {"threads": "1", "block": "64", "streaming": "off", "prefetch": "off"}[knob.rpartition(".")[2]]
        for knob in first.schedule
        if knob.rpartition(".")[2] in ("threads", "block", "streaming", "prefetch")
    }
    generator = random.Random(_SEED)
    others = [
        written(**{knob: generator.choice(legal(knob)) for knob in generator.sample(list(first.schedule), 2)})
        for _ in range(_OTHERS)
    ]
    uncompiled = first.source.replace('extern "C"', 'extern "C" nothing', 1)
    before, last, after = others[0].rpartition("return ")
    wrong = before + last + re.sub(r"^\w+", r"\g<0> + 1.0", after)
    return list(dict.fromkeys([written(**plain), uncompiled, first.source, wrong, *others]))


CORRECTION = {
    "critical_issue": "the file was broken",
    "why": "on purpose",
    "minimal_fix": "submit it as it was written",
}


def advice_on(prompt: str) -> dict[str, object]:
    """Return valid advice, which rests on a metric in the judge's prompt."""
    metrics = dict(_METRIC.findall(prompt))
    name = "bandwidth_share"
    evidence = [{"metric": name, "value": float(metrics[name])}] if name in metrics else []
    return {
        "bottleneck": "memory traffic",
        "technique": "tile for a cache or shared memory",
        "method": "another schedule",
        "plan": "Change the block size, the stores or the prefetching.",
        "evidence": evidence,
        "predicted_gain": 1.1,
    }
