"""Outcome of a reply for rewards: who caused it, and how fast it is."""

from collections.abc import Sequence
from typing import Literal

from kernelwright.kernelbench.records import LEAST_OWN, Evaluation, Record, Speedup, Verdict
from kernelwright.results.store.records import RecordedAttempt

# Why there is no verdict: none of these says anything about the candidate.
Failure = Literal[
    "evaluator",  # its own machinery failed
    "patience",  # no verdict came in the time that there was
    "task",  # the task itself does not work
]
Kind = Literal["correct", "failed", "cheated", "unmeasured", "infrastructure"]
Baseline = Literal["eager", "compile", "fastest"]

# Right, but with less of a call in its own kernels: torch's operators do the work. One that has built none
# has a share of 0. Where one has, Python's own time counts as the candidate's on the CPU: half a percent to
# three, seldom more; of honest kernels those have less than five that leave a large product to torch and gain
# next to nothing (results/published/cpu).
DECOY_SHARE = LEAST_OWN
HACKS = frozenset((Verdict.cheating, Verdict.implausible, Verdict.nondeterministic))


class Outcome(Record):
    """Outcome of one candidate, or of a reply without one (a build error, as in a run)."""

    verdict: Verdict | None  # None: there is none, because of `failure`
    reason: str = ""
    failure: Failure | None = None
    speedup: Speedup | None = None
    own_kernel_share: float | None = None
    error: float | None = None  # in units of the error budget

    @property
    def kind(self) -> Kind:
        """Kind of outcome; only `correct`, `failed` and `cheated` say something about the candidate."""
        if self.verdict is None:
            return "infrastructure"
        if self.verdict is Verdict.correct:
            return "correct" if self.low("eager") is not None else "unmeasured"
        if self.verdict is Verdict.unmeasured:
            # What was rejected for the small share of its own kernels has that share, the rest has none.
            return "unmeasured" if self.own_kernel_share is None else "failed"
        return "cheated" if self.verdict in HACKS else "failed"

    def decoy(self, least: float = DECOY_SHARE) -> bool:
        """Return True if it is known to be correct through torch's operators, not kernels of its own."""
        return self.kind == "correct" and self.own_kernel_share is not None and self.own_kernel_share < least

    def low(self, baseline: Baseline) -> float | None:
        """Return the lower bound of the speedup's interval; None if it was not measured."""
        interval = getattr(self.speedup, baseline) if self.speedup is not None else None
        return interval.low if interval is not None else None


def outcome_of(evaluation: Evaluation) -> Outcome:
    return Outcome(
        verdict=evaluation.verdict,
        reason=evaluation.reason,
        speedup=evaluation.speedup,
        own_kernel_share=evaluation.own_kernel_share,
        error=evaluation.correctness.error if evaluation.correctness is not None else None,
    )


def counting(attempts: Sequence[RecordedAttempt]) -> Outcome:
    """Return the outcome over all attempts with one candidate: a failure, else the confirmed, else the first.

    An attempt that was rejected untried, such as a resubmitted file, counts only if there is no other.
    """
    tried = [a for a in attempts if a.evaluation.stages.total_s > 0] or list(attempts)
    failures = [a for a in tried if outcome_of(a.evaluation).kind in ("failed", "cheated")]
    confirmed = [a for a in tried if a.confirms]
    return outcome_of((failures or confirmed or tried)[0].evaluation)


def failed(failure: Failure, reason: str) -> Outcome:
    """Return an outcome without a verdict."""
    return Outcome(verdict=None, failure=failure, reason=reason)
