"""Input of a reward function."""

from dataclasses import dataclass

from kernelwright.rl_training.outcome import Baseline, Outcome


@dataclass(frozen=True)
class RewardInput:
    """One turn, with the turns before it in its trajectory; a scheme leaves out those that were decoys."""

    outcome: Outcome
    source: str
    earlier: tuple[Outcome, ...] = ()
    repeats: str = ""  # the known hacking case (sha256) that a caught candidate is like
    decoy: bool = False  # right, but not by kernels of its own

    @property
    def right(self) -> bool:
        """True if it is correct by kernels of its own."""
        return self.outcome.kind == "correct" and not self.decoy

    def speedup(self, baseline: Baseline) -> float | None:
        """Return the lower bound; None if it is not correct, or was not timed against this baseline."""
        return self.outcome.low(baseline) if self.right else None

    def best_before(self, baseline: Baseline) -> float:
        """Return the largest lower bound of the turns before, at least 1.0, which is PyTorch's own."""
        lows = (o.low(baseline) for o in self.earlier if o.kind == "correct")
        return max([1.0, *(low for low in lows if low is not None)])
