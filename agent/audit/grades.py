"""The grade of a published kernel: its verdict in words, its score, and what it leaves of the claim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator.emulated import PARTLY
from kernelwright.kernelbench.languages import LANGUAGES
from kernelwright.kernelbench.records import Evaluation, Interval, Verdict
from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.kernelbench.without_gpu.evaluator import ELSEWHERE, holds_on_gpu
from kernelwright.results.archives.records import PublishedClaim, PublishedKernel
from kernelwright.results.formatting import headline, one_line, ratio

# How far a claimed speedup may lie outside the measured interval and still be as claimed: what a speedup
# differs by between two machines of a kind, or two versions of torch. Chosen by hand.
_TOLERANCE = 0.05


class ClaimOutcome(StrEnum):
    """Outcome of a claim after the audit, in words."""

    refuted = "claimed correct, and is not"
    slower = "slower than claimed"
    faster = "faster than claimed"
    vindicated = "claimed wrong, and is right here"
    holds = "as claimed"
    right = "right as claimed, its speed not measured"
    unchecked = "not checked"
    unclaimed = "no claim"


DIFFERENT = (ClaimOutcome.refuted, ClaimOutcome.slower, ClaimOutcome.faster, ClaimOutcome.vindicated)


@dataclass(frozen=True)
class KernelGrade:
    """A published kernel with its evaluation, or why it has none."""

    kernel: PublishedKernel
    evaluation: Evaluation | None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in words; a kernel that was not timed is never just "correct"."""
        found = self.evaluation
        if found is None:
            return "not graded"
        if found.verdict is not Verdict.unmeasured:
            said = str(found.verdict).replace("_", " ")
            return f"{said} {ELSEWHERE}" if found.reason.startswith(ELSEWHERE) else said
        if not found.right:
            return "not checked"
        if found.reason.startswith(PARTLY):
            return PARTLY
        here = LANGUAGES[language_of(self.kernel.source)].here
        if not here:
            return "right on the CPU"
        return "right in emulation" if here == "in emulation" else "right, interpreted"

    @property
    def reason(self) -> str:
        return one_line(self.evaluation.reason if self.evaluation is not None else self.why_not, 300)

    @property
    def score(self) -> float | None:
        """The speed-of-light score; None of a kernel that was not timed."""
        return None if self.evaluation is None else score_of(self.evaluation)

    def speedup(self, baseline: Literal["eager", "compile"]) -> Interval | None:
        """Return the measured speedup; None of a kernel that is not correct, or was not timed."""
        if self.evaluation is None or self.evaluation.verdict is not Verdict.correct:
            return None
        found = self.evaluation.speedup
        return getattr(found, baseline) if found is not None else None

    @property
    def outcome(self) -> ClaimOutcome:
        claim, found = self.kernel.claim, self.evaluation
        if claim == PublishedClaim():
            return ClaimOutcome.unclaimed
        if found is None or not (found.right or self._would_be_wrong(found)):
            return ClaimOutcome.unchecked
        if claim.correct is not None and claim.correct != found.right:
            return ClaimOutcome.refuted if claim.correct else ClaimOutcome.vindicated
        return self._of_speed(claim) if found.right else ClaimOutcome.holds

    def _would_be_wrong(self, found: Evaluation) -> bool:
        """Tell whether a kernel that is not right here would be wrong on the device of its claim, too.

        One that is wrong at smaller sizes alone may be made for those of its task.
        """
        if found.reason.startswith(ELSEWHERE):
            return False
        if found.target.device != "cpu" or self.kernel.claim.device == "cpu":
            return found.verdict is not Verdict.unmeasured
        unbuilt = bool(found.builds) and all(build.ok is False for build in found.builds)
        return unbuilt or found.verdict is Verdict.cheating or holds_on_gpu(found)

    def _of_speed(self, claim: PublishedClaim) -> ClaimOutcome:
        claimed, measured = self._compared
        if claimed is None:
            return ClaimOutcome.holds
        if measured is None:
            return ClaimOutcome.right
        if claimed > measured.high * (1 + _TOLERANCE):
            return ClaimOutcome.slower
        return ClaimOutcome.faster if claimed < measured.low * (1 - _TOLERANCE) else ClaimOutcome.holds

    @property
    def _compared(self) -> tuple[float | None, Interval | None]:
        """The claimed speedup, over eager if there is that, and the measured one on a device of its kind."""
        claim = self.kernel.claim
        baseline: Literal["eager", "compile"] = "eager" if claim.eager is not None else "compile"
        claimed = claim.eager if claim.eager is not None else claim.compile
        here = self.evaluation.target.device.partition(":")[0] if self.evaluation is not None else ""
        return claimed, self.speedup(baseline) if here == claim.device else None

    @property
    def against_claim(self) -> str:
        """Change against the claim, in a few words."""
        claimed, measured = self._compared
        match self.outcome:
            case ClaimOutcome.refuted:
                return f"claimed correct, {self.verdict}"
            case ClaimOutcome.vindicated:
                return f"claimed wrong, {self.verdict}"
            case ClaimOutcome.slower | ClaimOutcome.faster:
                return f"claimed {ratio(claimed)}, measured {headline(measured)}"
            case ClaimOutcome.right:
                return f"claimed {ratio(claimed)}, not measured"
            case ClaimOutcome.unchecked:
                said = (
                    ratio(claimed)
                    if claimed
                    else "wrong"
                    if self.kernel.claim.correct is False
                    else "correct"
                )
                return f"claimed {said}, not checked"
            case ClaimOutcome.holds:
                return f"{ratio(claimed)} as claimed" if claimed and measured else "as claimed"
        return ""

    @property
    def line(self) -> str:
        """The grade in one line: what changed, or the verdict, with its reason where it is not right."""
        if self.outcome in DIFFERENT:
            said = self.against_claim
        else:
            said = "; ".join(filter(None, (self.verdict, self.against_claim)))
        right = self.evaluation is not None and self.evaluation.right
        return said if right else f"{said}: {one_line(self.reason, 160)}"


def counts(grades: Sequence[KernelGrade]) -> Mapping[ClaimOutcome, int]:
    """Return how many claims have each outcome, those that none has left out."""
    found = [grade.outcome for grade in grades]
    return {outcome: found.count(outcome) for outcome in ClaimOutcome if outcome in found}
