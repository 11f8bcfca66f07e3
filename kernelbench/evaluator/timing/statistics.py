"""Statistics of timed blocks: seconds a call, speedups within phases, and bootstrap intervals.

A block of n calls takes F + n t seconds. F, what a block costs once (waking the worker, the message,
the answer), is measured where nobody gains from forging it: on blocks of no calls of the eager
baseline. So every block gives t by itself, (T - F) / n. The slope between a short and a long block,
(T(2N) - T(N)) / N, would need no F, but a candidate can forge it by being slow in short blocks, and it
triples the noise: a median error of 2.3% against 0.7% (docs/LOG.md, 2026-11-21).

With F = 5 ms and t = 10 ms, blocks of 4 and 8 calls take 45 and 85 ms, and each gives t:

>>> TimedBlock(4, 0.045).call_s(0.005), TimedBlock(8, 0.085).call_s(0.005)
(0.01, 0.01)

A candidate that sleeps for 36 ms in the short block has a slope of (85 - 81) / 4 = 1 ms, a tenth of the
truth. Taken by themselves its blocks say 19 and 10 ms, so that sleeping only costs it:

>>> round(TimedBlock(4, 0.081).call_s(0.005), 6)
0.019

Speedups differ more from process to process than within one. Of four processes with six phases each the
interval is as wide as the processes lie apart; were all 24 phases drawn alike, it would claim a fifth of
that:

>>> processes = [[level - 0.01, level, level, level, level, level + 0.01] for level in (1.95, 2.05, 2.0, 2.0)]
>>> def ends(groups):
...     found = interval(groups)
...     return round(found.low, 2), round(found.high, 2)
>>> ends(processes), ends([sum(processes, [])])
((1.95, 2.05), (1.99, 2.01))

Other processes on the machine slow down single blocks, by 5 to 20% on the development machine. The kernel
knows: it counts what a thread waits for a CPU. Blocks in which a worker waited more, or less, than it
usually does are left out. A worker whose own threads crowd each other usually waits, and gains nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelwright.kernelbench.evaluator.timing.alone import Alone, estimate
from kernelwright.kernelbench.records import TRAFFIC, Interval

_RESAMPLES = 4000  # of the bootstrap; chosen by hand
_FEWEST_PAIRS = 4  # of blocks of N and of 2N calls, that tell what a block costs; chosen by hand
_SAVED = 0.5  # share of a block's fixed cost that a candidate's process may save; chosen by hand
# Share of a block's time that a worker may have waited for a CPU more, or less, than usual; chosen by hand.
# Leaving out phases beyond it takes the spread of ratios from 6% to 1.5% for gelu_tanh, from 5% to 2% for mlp
# (docs/LOG.md, 2026-11-22).
_UNUSUAL = 0.01


@dataclass(frozen=True)
class TimedBlock:
    """Seconds that `calls` took a worker, in `messages`, while its threads waited `waited_s` for a CPU.

    `device_s`: the same by a GPU's own clock; NaN if there is none.
    """

    calls: int
    seconds: float
    waited_s: float = 0.0
    messages: int = 1
    device_s: float = math.nan

    def call_s(self, empty_s: float, empty_device_s: float = 0.0) -> float:
        """Seconds a call; no more than three quarters are taken off for what messages cost.

        Nor less than a GPU's own clock says, which counts `empty_device_s` before the first kernel runs: a
        worker that has it say more only loses.
        """
        device_s = self.device_s - self.messages * empty_device_s if math.isfinite(self.device_s) else 0.0
        return max(self.seconds - self.messages * empty_s, self.seconds / 4, device_s) / self.calls


def interval(groups: Sequence[Sequence[float]]) -> Interval:
    """Median of all values, with the 95% percentile interval of its bootstrap.

    `groups`: the values of one process each, which share what differs from process to process. So groups
    are drawn, then values within each. (A. C. Davison and D. V. Hinkley, "Bootstrap Methods and their
    Application", 1997, section 3.8.)
    """
    counts = np.array([len(group) for group in groups])
    generator = np.random.default_rng(int(counts.sum()))
    table = np.full((len(groups), counts.max()), np.nan)
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    drawn = generator.integers(0, len(groups), (_RESAMPLES, len(groups), 1))
    within = (generator.random((*drawn.shape[:2], counts.max())) * counts[drawn]).astype(np.int64)
    values = np.where(np.arange(counts.max()) < counts[drawn], table[drawn, within], np.nan)
    medians = np.nanmedian(values.reshape(_RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(median=float(np.nanmedian(table)), low=float(low), high=float(high))


@dataclass(frozen=True)
class Timings:
    """Times of all workers: "candidate" and the baselines, "eager" among them.

    `blocks[worker][i]` is phase i, in which every worker ran the same number of calls on the same inputs, one
    worker after the other, the candidate in its process number `processes[i]`. `empty_s`: seconds of blocks
    of no calls. `alone_s[worker][i]`: seconds of a block of one call, for candidate and eager on the same
    input. `overhead_s`: seconds that a worker's loop adds to a call. `launch_s`: seconds in which the host
    launches a call of eager on a GPU.
    """

    blocks: Mapping[str, list[TimedBlock]]
    empty_s: list[float]
    processes: list[int]
    alone_s: Mapping[str, list[float]] = field(default_factory=dict)
    overhead_s: float = 0.0
    launch_s: float = 0.0

    @property
    def fixed_s(self) -> float:
        """Seconds that a block costs, apart from its calls.

        On a GPU, whose end of work is seen by another process, that is not what a block of no calls costs:
        there by eager, which has no part in what a candidate could gain, in blocks of N and of 2N calls.
        """
        beyond_s = self._beyond_calls_s(lambda block: block.seconds) if self.by_device else None
        return float(np.median(self.empty_s)) if beyond_s is None else max(0.0, beyond_s)

    @property
    def fixed_device_s(self) -> float:
        """Seconds that a GPU's own clock counts in a block beside its calls, found in the same way; or zero.

        The clock runs from before the first launch.
        """
        return max(0.0, self._beyond_calls_s(lambda block: block.device_s) or 0.0) if self.by_device else 0.0

    @property
    def by_device(self) -> bool:
        """True if blocks were also timed by a device's own clock."""
        return all(math.isfinite(block.device_s) for block in self.blocks["eager"][:1])

    def _beyond_calls_s(self, seconds: Callable[[TimedBlock], float]) -> float | None:
        """Return what eager's blocks would take without calls, by the line through N and 2N, if known."""
        found = [
            2 * seconds(short) - seconds(long)
            for short, long in zip(self.blocks["eager"][::2], self.blocks["eager"][1::2], strict=False)
            if long.calls == 2 * short.calls and long.messages == short.messages == 1
        ]
        return float(np.median(found)) if len(found) >= _FEWEST_PAIRS else None

    @property
    def alone(self) -> Alone:
        """Estimate of the candidate's time from calls that come alone."""
        pair = ("candidate", "eager")
        if not all(self.alone_s.get(name) for name in pair):
            return Alone()
        phases = self.undisturbed(*pair)
        block_s = [[self._call_s(name, i) for i in phases] for name in pair]
        alone_s = [self.alone_s[name] for name in pair]
        return estimate(np.array(block_s), np.array(alone_s), np.array(self.empty_s), self.launch_s)

    @property
    def busy(self) -> bool:
        """True if other work disturbed more of the phases, for candidate or eager, than are left out."""
        unusual = self._unusual("candidate", "eager")
        return int((unusual <= _UNUSUAL).sum()) < -(-len(unusual) // 2)

    def undisturbed(self, *workers: str) -> list[int]:
        """Return the phases in which no worker waited unusually; the better half if they are fewer."""
        unusual = self._unusual(*workers)
        best = np.argsort(unusual, kind="stable")
        count = max(int((unusual <= _UNUSUAL).sum()), -(-len(best) // 2))
        return sorted(best[:count].tolist())

    def _unusual(self, *workers: str) -> "np.ndarray[Any, Any]":
        """Share of each phase that one of `workers` waited more, or less, for a CPU than it usually does."""
        unusual = np.zeros(len(self.processes))
        for worker in workers:
            shares = np.array([block.waited_s / block.seconds for block in self.blocks[worker]])
            unusual = np.maximum(unusual, np.abs(shares - np.median(shares)))
        return unusual

    def _by_process(self, workers: Sequence[str], value: Callable[..., float]) -> Interval:
        """Return the interval of `value` of workers' seconds a call, over phases undisturbed for them."""
        groups: dict[int, list[float]] = {}
        factors = {"candidate": self.alone.factor}
        for phase in self.undisturbed(*workers):
            seconds = (factors.get(worker, 1.0) * self._call_s(worker, phase) for worker in workers)
            groups.setdefault(self.processes[phase], []).append(value(*seconds))
        return interval(list(groups.values()))

    def _call_s(self, worker: str, phase: int) -> float:
        return self.blocks[worker][phase].call_s(self.fixed_s, self.fixed_device_s)

    def time_us(self, worker: str) -> Interval:
        return self._by_process([worker], lambda seconds: 1e6 * seconds)

    @property
    def clocks_differ(self) -> float | None:
        """Time of a call by the referee's clock over that by the device's, for whom they differ more."""
        found = [
            self.time_us(worker).median / device_us
            for worker in ("candidate", "eager")
            if (device_us := self.device_us(worker))
        ]
        return max(found, key=lambda ratio: abs(math.log(ratio)), default=None)

    def device_us(self, worker: str) -> float | None:
        """Return the median time a call by the device's own clock, as the worker read it."""
        fixed_s = self.fixed_device_s
        times = [(block.device_s - block.messages * fixed_s) / block.calls for block in self.blocks[worker]]
        return 1e6 * float(np.median(times)) if np.isfinite(times).all() else None

    def speedup(self, baseline: str) -> Interval:
        """Speedup over a baseline, from the ratios within phases.

        The interval reaches down to where nothing but the candidate's kernels may have gained it. The loop
        around a call, and what prepares and answers a block, is Python of the candidate's process, which may
        replace it by less: so the interval reaches down to what it is if only the baseline has this overhead.
        Where other work on the machine disturbed the blocks, it also reaches down to what calls that come
        alone leave possible.
        """
        ratio = self._ratio(baseline)
        low = ratio.low * (1 - min(1.0, 1e6 * self.overhead_s / self.time_us(baseline).median))
        blocks = self.blocks["candidate"]
        calls = sum(block.calls for block in blocks) / sum(block.messages for block in blocks)
        candidate_s = 1e-6 * self.time_us("candidate").median
        low *= candidate_s / (candidate_s + _SAVED * self.fixed_s / calls)
        if self.busy:
            low = min(low, self.alone.speedup_low * ratio.median / self._ratio("eager").median)
        return ratio.model_copy(update={"low": low})

    def _ratio(self, baseline: str) -> Interval:
        return self._by_process([baseline, "candidate"], lambda base, candidate: base / candidate)

    @property
    def rivals(self) -> list[str]:
        """The baselines that compute what the candidate does."""
        return [name for name in self.blocks if name not in ("candidate", TRAFFIC)]

    @property
    def half_width(self) -> float:
        """Half the width of the widest interval of a speedup, relative to its median."""
        found = [self._ratio(name) for name in self.rivals]
        return max((speedup.high - speedup.low) / 2 / speedup.median for speedup in found)

    def fastest_baseline(self) -> str:
        """Return the one that the candidate is least ahead of, phase by phase."""
        return min(self.rivals, key=lambda name: self.speedup(name).median)
