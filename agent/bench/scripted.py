"""A model that is none: it answers with kernels of the builtin coder, some of them spoilt.

What it says is scripted, so a run with it can be repeated and its cost is known; the kernels are real. For
each task it submits, round by round: its plainest schedule, a file that does not compile, the default
schedule, a file that computes something else, and then other schedules. As a judge it gives one piece of
advice that holds, and rests it on a metric that it is shown.
"""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.agent.bench.publishing import log
from kernelwright.agent.bench.server import Says, Server
from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.compile import compile_graph
from kernelwright.agent.builtin.ir import graph as graphs
from kernelwright.agent.builtin.schedule import Schedule, legal
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Limits
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Task

_TASK = re.compile(r"^# The task: (\S+)$", re.MULTILINE)
_METRIC = re.compile(r"^- (\S+) = (\S+) ", re.MULTILINE)
_SEED = 20  # of the schedules that are tried


class ScriptedModel:
    """A script for a `Server`."""

    def __init__(self, tasks: Sequence[Task], cache: Path, latency_s: float = 0.0, pieces: int = 50) -> None:
        """Writes all kernels beforehand. `latency_s`: what an answer takes, streamed in so many `pieces`."""
        self._latency_s, self._pieces = latency_s, pieces
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        with WorkerPool(threads=1, cache=cache, limits=Limits()) as pool:
            self._files = {task.id: _files(task, trace(pool, task)) for task in tasks}

    def begin(self) -> None:
        """Forget what was asked: a new run."""
        self._asked.clear()

    def __call__(self, body: dict[str, Any], number: int) -> Says:
        system, user = (message["content"] for message in body["messages"][:2])
        if "`ModelNew`, which" in system:
            said = self._file(user)
        elif "critical_issue" in system:
            said = json.dumps(
                {
                    "critical_issue": "the file was spoilt",
                    "why": "on purpose",
                    "minimal_fix": "write it whole",
                }
            )
        else:
            said = json.dumps(_optimization(user))
        return Says(said, pieces=self._pieces, pause_s=self._latency_s / self._pieces)

    def _file(self, prompt: str) -> str:
        task = _found(_TASK, prompt)
        with self._lock:
            files, number = self._files[task], self._asked[task]
            self._asked[task] += 1
        return f"```python\n{files[number % len(files)]}```\n"


def serve(
    tasks: Annotated[list[str], typer.Argument(help="That kernels are written for.")],
    port: int = 8001,
    latency_s: Annotated[float, typer.Option(help="Of every answer.")] = 1.0,
) -> None:
    """Serve a scripted model, for a look at runs with one: until it is interrupted."""
    model = ScriptedModel(sources.resolve(tasks), cache_folder(), latency_s)
    server = Server(port)
    server.script = model
    log(f"export OPENAI_BASE_URL={server.base_url}; kernelwright run … --coder llm --model scripted")
    with server.serving():
        threading.Event().wait()


def _files(task: Task, graph: graphs.Graph) -> list[str]:
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
    chance = random.Random(_SEED)
    others = [
        written(**{knob: chance.choice(legal(knob)) for knob in chance.sample(list(first.schedule), 2)})
        for _ in range(8)
    ]
    uncompiled = first.source.replace('extern "C"', 'extern "C" nothing', 1)
    before, last, after = others[0].rpartition("return ")
    wrong = before + last + re.sub(r"^\w+", r"\g<0> + 1.0", after)
    return list(dict.fromkeys([written(**plain), uncompiled, first.source, wrong, *others]))


def _optimization(prompt: str) -> dict[str, object]:
    shown = dict(_METRIC.findall(prompt))
    name = "bandwidth_share"
    evidence = [{"metric": name, "value": float(shown[name])}] if name in shown else []
    return {
        "bottleneck": "memory traffic",
        "technique": "tile for a cache or shared memory",
        "method": "another schedule",
        "plan": "Change the block size, the stores or the prefetching.",
        "evidence": evidence,
        "predicted_gain": 1.1,
    }


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    assert found is not None, text[:500]
    return found.group(1)
