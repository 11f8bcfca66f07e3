"""The terms of a reward: each a small function of a `RewardInput`, with its weight and its numbers.

| term | value, before its weight | after |
|---|---|---|
| correct | 1 where right | Kevin, arXiv:2507.11948 (0.3 · correct + speedup) |
| speedup | s, log s or min(s, most) where right | Kevin; CUDA-L1, 2507.14111; Dr.Kernel, 2602.05885 |
| milestones | -1 wrong, 1 right, 2 faster than eager, 3 than torch.compile too | CUDA Agent, 2602.24286 |
| coverage | share of the time in its own kernels where right | Dr.Kernel |
| deviation | -error, in units of the error budget, where right | CUDA-L2, arXiv:2512.02551 |
| length | -thousands of characters where right | CUDA-L2 |
| progress | log of the gain over the best turn before | MRT, arXiv:2503.07572, with measured progress |
| custom | what a function of the user's says | |
"""

import math
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.functions import function_of
from kernelwright.rl_training.outcome import Baseline
from kernelwright.rl_training.rewards.reward_input import RewardInput
from kernelwright.rl_training.trajectory import RewardTerm


class _Term(Record):
    weight: float = 1.0

    def _is(self, value: float, **metrics: float) -> RewardTerm:
        return RewardTerm(value=self.weight * value, metrics=metrics)


class Correct(_Term):
    term: Literal["correct"] = "correct"

    def __call__(self, seen: RewardInput) -> RewardTerm:
        return self._is(
            float(seen.right), correct=float(seen.outcome.kind == "correct"), decoy=float(seen.decoy)
        )


class SpeedupTerm(_Term):
    """Term for the speedup s, which `most` bounds.

    log s is at least that of `least`, which is 1, since slow but correct is to beat wrong; with another,
    give `correct` enough weight for that.
    """

    term: Literal["speedup"] = "speedup"
    form: Literal["plain", "log", "clipped"] = "log"
    most: PositiveFloat | None = None
    least: PositiveFloat = 1.0  # of `log`
    baseline: Baseline = "eager"

    def __call__(self, seen: RewardInput) -> RewardTerm:
        low = seen.speedup(self.baseline)
        if low is None:
            return self._is(0.0)
        most = 3.0 if self.most is None and self.form == "clipped" else self.most
        bounded = low if most is None else min(low, most)
        value = math.log(max(self.least, bounded)) if self.form == "log" else bounded
        return self._is(value, speedup=low)


class Milestones(_Term):
    """Term in steps. Faster means by at least the share `margin` of the baseline's time."""

    term: Literal["milestones"] = "milestones"
    margin: float = Field(default=0.05, ge=0, lt=1)

    def __call__(self, seen: RewardInput) -> RewardTerm:
        if not seen.right:
            return self._is(-1.0)
        needed = 1 / (1 - self.margin)
        eager, compiled = seen.speedup("eager"), seen.speedup("compile")
        beats_eager = eager is not None and eager > needed
        beats_both = beats_eager and compiled is not None and compiled > needed
        known = {"compile_known": float(compiled is not None)}
        return self._is(3.0 if beats_both else 2.0 if beats_eager else 1.0, **known)


class CoverageTerm(_Term):
    term: Literal["coverage"] = "coverage"

    def __call__(self, seen: RewardInput) -> RewardTerm:
        share = seen.outcome.own_kernel_share
        known = {"share_known": float(share is not None)}
        return self._is(share if seen.right and share is not None else 0.0, **known)


class Deviation(_Term):
    term: Literal["deviation"] = "deviation"

    def __call__(self, seen: RewardInput) -> RewardTerm:
        error = seen.outcome.error
        return self._is(-error if seen.right and error is not None else 0.0)


class Length(_Term):
    """Term for short files, of correct ones only, else the shortest wrong file would be the best of them."""

    term: Literal["length"] = "length"
    weight: float = 0.01

    def __call__(self, seen: RewardInput) -> RewardTerm:
        return self._is(-len(seen.source) / 1000 if seen.right else 0.0, characters=float(len(seen.source)))


class Progress(_Term):
    """Term for progress, after MRT; the gain is measured, not estimated from the chance of success."""

    term: Literal["progress"] = "progress"
    baseline: Baseline = "eager"

    def __call__(self, seen: RewardInput) -> RewardTerm:
        low = seen.speedup(self.baseline)
        gain = 1.0 if low is None else low / seen.best_before(self.baseline)
        return self._is(max(0.0, math.log(gain)) if gain > 0 else 0.0, gain=gain)


class Custom(_Term):
    """Term of the user's: a function of a `RewardInput` that returns a number, or a `RewardTerm`.

    It is called for wrong candidates, too: `seen.right` says which those are. Who reads terms from a file or
    a request that is not the user's own refuses this one: it runs what it names.
    """

    term: Literal["custom"] = "custom"
    function: str  # "my.py:reward", or "package.module:reward"
    sha256: str = ""  # of the file that defines it

    def __call__(self, seen: RewardInput) -> RewardTerm:
        found = function_of(self.function)(seen)
        if isinstance(found, RewardTerm):
            return found.model_copy(update={"value": self.weight * found.value})
        value = float(found)
        if not math.isfinite(value):
            raise ValueError(f"{self.function} gave {value}")
        return self._is(value)


Term = Annotated[
    Correct | SpeedupTerm | Milestones | CoverageTerm | Deviation | Length | Progress | Custom,
    Field(discriminator="term"),
]
