"""Which sign of a disturbance is worth leaving a phase out for?"""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer

from kernelwright.agent.bench.publishing import AA_TASKS, itself, log, publish
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.session import Block, TaskSession
from kernelwright.kernelbench.evaluator.timing.statistics import interval
from kernelwright.kernelbench.machine import cache_folder

_DATA = bytes(1 << 18)
_HASHES = 4  # some five milliseconds, as long as a short call


@dataclass(frozen=True)
class _Observed:
    """A timed block, and what might tell that it was disturbed."""

    process: int
    calls: int
    seconds: float
    waited: float  # share of the time that its threads waited for a CPU
    loop_s: float  # of a calibration loop before it and one after it
    stolen: float  # share of the time that a hypervisor took from any CPU


def guards(repeats: Annotated[int, typer.Option(help="Evaluations a task.")] = 3) -> None:
    """How narrow intervals are when disturbed phases are left out by one sign or another.

    Signs: what threads waited for a CPU (`schedstat`), a calibration loop before and after each block, and
    what a hypervisor takes away (`steal` of /proc/stat). At most half of all phases are left out, those that
    are furthest from usual.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    with Referee.start(cache=cache_folder()) as evaluator:
        for task in sources.resolve(AA_TASKS):
            for _ in range(repeats):
                blocks: list[_Observed] = []
                with patch.object(TaskSession, "run", _observing(TaskSession.run, blocks)):
                    evaluator.evaluate(task, itself(task), EAGER)
                for name, outcome in _outcomes(_phases(blocks)).items():
                    found.setdefault(name, []).append(outcome)
                    log(f"{task.id}: {name}: {outcome}")
        rows = [
            (name, _percent([width for width, _, _ in each]), _percent([left for _, left, _ in each]),
             "" if name == "none" else f"{np.nanmean([r for _, _, r in each]):.2f}")
            for name, each in found.items()
        ]  # fmt: skip
        header = (
            "left out by",
            "half width of the interval",
            "phases left out",
            "correlation with the ratio",
        )
        title = "Signs of a disturbance: references against themselves, means of all evaluations"
        publish("guards", title, header, rows, evaluator.target.fingerprint)


def _percent(values: Sequence[float]) -> str:
    return f"{100 * np.mean(values):.2f}%"


def _observing(run: Callable[..., Block], blocks: list[_Observed]) -> Callable[..., Block]:
    def observed(session: TaskSession, worker: Worker, *args: Any, **named: Any) -> Block:
        loop_s, stolen_s = _loop_s(), -_stolen_s()
        block = run(session, worker, *args, **named)
        stolen_s += _stolen_s()
        loop_s += _loop_s()
        calls = len(block.outputs)
        if named.get("strict"):  # one that counts
            share = block.waited_s / block.seconds
            stolen = stolen_s / block.seconds
            blocks.append(_Observed(worker.init_pid, calls, block.seconds, share, loop_s, stolen))
        return block

    return observed


def _loop_s() -> float:
    started = time.perf_counter()
    for _ in range(_HASHES):
        hashlib.sha256(_DATA).digest()
    return time.perf_counter() - started


def _stolen_s() -> float:
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / 100


def _phases(blocks: Sequence[_Observed]) -> list[tuple[_Observed, _Observed]]:
    """Candidate and eager of each phase; always the same one first while these two processes last."""
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return [(a, b) if a.process < b.process else (b, a) for a, b in pairs]


def _outcomes(phases: Sequence[tuple[_Observed, _Observed]]) -> dict[str, tuple[float, float, float]]:
    """By sign: the interval's half width, the share of phases left out, the correlation with ratios."""
    ratios = np.array([math.log(a.seconds / b.seconds) for a, b in phases])
    signs: dict[str, Callable[[_Observed], float]] = {
        "none": lambda block: 0.0,
        "waiting": lambda block: block.waited,
        "calibration loop": lambda block: math.log(block.loop_s),
        "steal": lambda block: block.stolen,
    }
    limits = {"none": 1.0, "waiting": 0.01, "calibration loop": 0.02, "steal": 0.01}
    outcomes = {}
    for name, sign in signs.items():
        both = np.array([[sign(a), sign(b)] for a, b in phases])
        unusual = np.abs(both - np.median(both, axis=0)).max(axis=1)
        kept = np.argsort(unusual, kind="stable")[
            : max((unusual <= limits[name]).sum(), -(-len(ratios) // 2))
        ]
        found = interval([np.exp(ratios[kept]).tolist()])
        difference = both[:, 0] - both[:, 1]
        correlation = np.corrcoef(ratios, difference)[0, 1] if difference.std() > 0 else math.nan
        width = (found.high - found.low) / 2 / found.median
        outcomes[name] = width, 1 - len(kept) / len(ratios), float(correlation)
    return outcomes
