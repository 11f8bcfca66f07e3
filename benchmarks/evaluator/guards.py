"""Signs of a disturbance that might justify leaving a timed phase out, by references against themselves.

    python -m benchmarks guards

Signs: the time threads waited for a CPU (`schedstat`), a calibration loop before and after each block, and
the time a hypervisor took away (`steal` of /proc/stat). At most half of all phases are left out, those that
are furthest from usual. Machine: CPU. Time: 4 minutes (estimate). Writes cpu/guards.md.
"""

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer

from benchmarks.evaluator.accuracy import half_width
from benchmarks.publishing import log, percent, publish
from benchmarks.references import AA_TASKS, itself
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.evaluator.block import Block
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.timing.statistics import interval
from kernelwright.kernelbench.machine import cache_folder

_DATA = bytes(1 << 18)
_HASHES = 4  # about 5 ms, as long as a short call
_NO_SIGN = "none"
_HEADER = ("left out by", "half width of the interval", "phases left out", "correlation with the ratio")


@dataclass(frozen=True)
class _Observed:
    """A timed block, and signs that it was disturbed."""

    process: int
    calls: int
    seconds: float
    waited: float  # share of the time that its threads waited for a CPU
    loop_s: float  # of a calibration loop before it and one after it
    stolen: float  # share of the time that a hypervisor took from any CPU


@dataclass(frozen=True)
class _Outcome:
    """An interval without the phases that a sign leaves out."""

    half_width: float  # share of the median
    left_out: float  # share of phases
    correlation: float  # of the sign's difference and the ratio of times; NaN where the sign is constant


def run(repeats: Annotated[int, typer.Option(help="Evaluations of each task.")] = 3) -> None:
    by_sign: dict[str, list[_Outcome]] = {}
    with Referee.start(cache=cache_folder()) as evaluator:
        for task in sources.resolve(AA_TASKS):
            for _ in range(repeats):
                blocks: list[_Observed] = []
                with patch.object(TaskSession, "run", _observing(TaskSession.run, blocks)):
                    evaluator.evaluate(task, itself(task), EAGER)
                for name, outcome in _outcomes(_phases(blocks)).items():
                    by_sign.setdefault(name, []).append(outcome)
                    log(f"{task.id}: {name}: {outcome}")
        machine = evaluator.target.fingerprint
    rows = [
        (
            name,
            percent(statistics.mean(outcome.half_width for outcome in outcomes)),
            percent(statistics.mean(outcome.left_out for outcome in outcomes)),
            "" if name == _NO_SIGN else f"{np.nanmean([outcome.correlation for outcome in outcomes]):.2f}",
        )
        for name, outcomes in by_sign.items()
    ]
    title = "Signs of a disturbance: references against themselves, means of all evaluations"
    publish("guards", title, _HEADER, rows, machine)


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


def _outcomes(phases: Sequence[tuple[_Observed, _Observed]]) -> dict[str, _Outcome]:
    """Outcomes by sign."""
    ratios = np.array([math.log(a.seconds / b.seconds) for a, b in phases])
    signs: dict[str, tuple[Callable[[_Observed], float], float]] = {  # each with the largest usual distance
        _NO_SIGN: (lambda block: 0.0, 1.0),
        "waiting": (lambda block: block.waited, 0.01),
        "calibration loop": (lambda block: math.log(block.loop_s), 0.02),
        "steal": (lambda block: block.stolen, 0.01),
    }
    outcomes = {}
    for name, (sign, limit) in signs.items():
        both = np.array([[sign(a), sign(b)] for a, b in phases])
        distance = np.abs(both - np.median(both, axis=0)).max(axis=1)
        count = max((distance <= limit).sum(), -(-len(ratios) // 2))
        kept = np.argsort(distance, kind="stable")[:count]
        difference = both[:, 0] - both[:, 1]
        correlation = np.corrcoef(ratios, difference)[0, 1] if difference.std() > 0 else math.nan
        width = half_width(interval([np.exp(ratios[kept]).tolist()]))
        outcomes[name] = _Outcome(width, 1 - len(kept) / len(ratios), float(correlation))
    return outcomes
