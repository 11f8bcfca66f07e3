"""Outcomes of claims: for every verdict, and for speedups inside and outside the measured interval."""

import pytest

from kernelwright.agent.audit.grades import ClaimOutcome, KernelGrade
from kernelwright.kernelbench.records import (
    Correctness,
    Environment,
    Evaluation,
    Interval,
    Speedup,
    Stages,
    Verdict,
)
from kernelwright.results.archives.records import PublishedClaim, PublishedKernel
from tests.helpers.anywhere import TARGET

GPU = TARGET.model_copy(update={"device": "cuda:0"})
CUDA = 'SOURCE = r"__global__ void f() {}"\ncuda_sources = SOURCE\n'
CHECKED = Correctness(inputs_tried=8, error=0.1, reference_error=None, worst_input="task")


def grade(
    claim: PublishedClaim,
    verdict: Verdict,
    reason: str = "",
    eager: tuple[float, float, float] | None = None,
    on: str = "cuda:0",
    checked: bool = False,
    source: str = CUDA,
) -> KernelGrade:
    over_eager = Interval(low=eager[0], median=eager[1], high=eager[2]) if eager else None
    evaluation = Evaluation(
        task="kernelbench:1/1", candidate="", target=GPU if on == "cuda:0" else TARGET, verdict=verdict,
        reason=reason, speedup=Speedup(eager=over_eager) if eager else None, stages=Stages(),
        environment=Environment(sandbox=()), correctness=CHECKED if checked else None,
    )  # fmt: skip
    kernel = PublishedKernel(level=1, problem=1, source=source, claim=claim, where="here")
    return KernelGrade(kernel, evaluation)


RIGHT, WRONG = PublishedClaim(correct=True), PublishedClaim(correct=False)
TWICE = PublishedClaim(correct=True, eager=2.3)


@pytest.mark.parametrize(
    ("found", "outcome", "words"),
    [
        (grade(RIGHT, Verdict.correct), ClaimOutcome.holds, "as claimed"),
        (grade(RIGHT, Verdict.wrong_output), ClaimOutcome.refuted, "claimed correct, wrong output"),
        (grade(RIGHT, Verdict.cheating), ClaimOutcome.refuted, "claimed correct, cheating"),
        (grade(WRONG, Verdict.correct), ClaimOutcome.vindicated, "claimed wrong, correct"),
        (grade(WRONG, Verdict.build_error), ClaimOutcome.holds, "as claimed"),
        (grade(PublishedClaim(), Verdict.correct), ClaimOutcome.unclaimed, ""),
        (
            grade(TWICE, Verdict.correct, eager=(0.88, 0.9, 0.92)),
            ClaimOutcome.slower,
            "claimed 2.30×, measured 0.90×",
        ),
        (
            grade(TWICE, Verdict.correct, eager=(2.9, 3.0, 3.1)),
            ClaimOutcome.faster,
            "claimed 2.30×, measured 3.00×",
        ),
        (grade(TWICE, Verdict.correct, eager=(2.2, 2.25, 2.28)), ClaimOutcome.holds, "2.30× as claimed"),
        (grade(TWICE, Verdict.correct), ClaimOutcome.right, "claimed 2.30×, not measured"),
        (
            grade(PublishedClaim(correct=True, compile=1.5), Verdict.correct),
            ClaimOutcome.right,
            "claimed 1.50×, not measured",
        ),
    ],
)
def test_a_claim_is_held_against_what_is_found(found: KernelGrade, outcome: ClaimOutcome, words: str) -> None:
    assert (found.outcome, found.against_claim) == (outcome, words)


def test_a_speedup_on_a_cpu_says_nothing_of_a_claim_about_a_gpu() -> None:
    found = grade(TWICE, Verdict.correct, eager=(0.88, 0.9, 0.92), on="cpu")
    assert found.outcome is ClaimOutcome.right
    here = grade(TWICE.model_copy(update={"device": "cpu"}), Verdict.correct, eager=(0.8, 0.9, 1.0), on="cpu")
    assert here.outcome is ClaimOutcome.slower


@pytest.mark.parametrize(
    ("verdict", "reason", "outcome"),
    [
        (Verdict.wrong_output, "", ClaimOutcome.refuted),
        (Verdict.runtime_error, "KernelFault: out of bounds", ClaimOutcome.refuted),
        (Verdict.runtime_error, "RuntimeError: No CUDA GPUs are available", ClaimOutcome.unchecked),
        (Verdict.wrong_output, "at smaller sizes, n=511: 3 elements differ", ClaimOutcome.unchecked),
        (Verdict.runtime_error, "at smaller sizes, n=511: KernelFault: a race", ClaimOutcome.unchecked),
        (Verdict.timeout, "", ClaimOutcome.unchecked),
        (Verdict.build_error, "cublas_v2.h: No such file", ClaimOutcome.unchecked),
        (Verdict.unmeasured, "not checked: inline PTX", ClaimOutcome.unchecked),
    ],
)
def test_without_a_gpu_only_what_a_gpu_would_do_too_refutes(
    verdict: Verdict, reason: str, outcome: ClaimOutcome
) -> None:
    assert grade(TWICE, verdict, reason, on="cpu").outcome is outcome


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        (CUDA, "right in emulation; there is no GPU to time it on", "right in emulation"),
        ("import torch\n", "right on the CPU; it has no GPU kernel (torch)", "right on the CPU"),
        (CUDA, "partly checked: g (line 3) never ran", "partly checked"),
        (
            "import triton\n\n@triton.jit\ndef f(x):\n    pass\n",
            "right in Triton's interpreter",
            "right, interpreted",
        ),
    ],
)
def test_what_is_right_and_was_not_timed_is_never_called_correct(
    source: str, reason: str, words: str
) -> None:
    found = grade(TWICE, Verdict.unmeasured, reason, on="cpu", checked=True, source=source)
    assert (found.verdict, found.outcome) == (words, ClaimOutcome.right)
    assert found.speedup("eager") is None and found.score is None


def test_wrong_at_smaller_sizes_alone_is_said_in_the_verdict() -> None:
    found = grade(TWICE, Verdict.wrong_output, "at smaller sizes, n=511: 3 elements differ", on="cpu")
    assert found.verdict == "wrong output at smaller sizes"


def test_a_claim_that_is_not_checked_is_said_as_it_was() -> None:
    found = [grade(claim, Verdict.timeout, on="cpu").against_claim for claim in (WRONG, RIGHT, TWICE)]
    assert found == [f"claimed {what}, not checked" for what in ("wrong", "correct", "2.30×")]


def test_a_kernel_without_an_evaluation_says_why() -> None:
    kernel = PublishedKernel(level=9, problem=1, source="", claim=TWICE, where="here")
    found = KernelGrade(kernel, None, why_not="unknown task kernelbench:9/1")
    assert (found.verdict, found.outcome) == ("not graded", ClaimOutcome.unchecked)
    assert found.line == "not graded; claimed 2.30×, not checked: unknown task kernelbench:9/1"
