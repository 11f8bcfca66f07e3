"""A second candidate for some sizes: chosen by what is certain at the sizes that a coder may know."""

import pytest

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.by_size import second
from kernelwright.kernelbench.records import Candidate, Interval, Size, SizeResult, Speedup, Timing, Verdict
from tests.helpers.profiling.evaluated import evaluation_of

ELEMENTS = (1000, 8000, 64000)
WEIGHTS = (8.0, 1.0, 1.0)
MICROSECONDS = (5.0, 20.0, 150.0)


def attempt(name: str, *speedups: float, spread: float = 0.06, hidden: int | None = None) -> Attempt:
    results = []
    for i, speedup in enumerate(speedups):
        us = MICROSECONDS[i]
        timing = Timing(candidate_us=Interval(median=us, low=us, high=us), calls_per_block=1, rounds=5)
        eager = Interval(median=speedup, low=speedup * (1 - spread), high=speedup * (1 + spread))
        size = Size(constants={"rows": str(ELEMENTS[i])}, weight=WEIGHTS[i], hidden=i == hidden)
        results.append(
            SizeResult(
                size=size, verdict=Verdict.correct, reason="", timing=timing, speedup=Speedup(eager=eager)
            )
        )
    evaluation = evaluation_of(1.0).model_copy(update={"sizes": tuple(results)})
    return Attempt(Candidate(source=name, language="cpp", author="builtin"), evaluation, None)


BEST = attempt("best", 0.9, 1.6, 1.9)


def test_another_serves_what_is_small() -> None:
    chosen = second(BEST, [attempt("other", 1.4, 1.2, 1.3)], ELEMENTS)
    assert chosen is not None and chosen.candidate is not None
    assert (chosen.candidate.source, chosen.below, chosen.elements) == ("other", True, 2828)
    assert chosen.gain == pytest.approx(210 / (210 - 8 * 5 * (1 - 0.9 / 1.4)))


def test_another_serves_what_is_large() -> None:
    chosen = second(BEST, [attempt("other", 0.5, 0.8, 2.4)], ELEMENTS)
    assert chosen is not None and not chosen.below
    assert chosen.elements == 22627  # up to here the winner


def test_the_reference_serves_sizes_at_which_all_kernels_are_slower() -> None:
    chosen = second(attempt("best", 0.7, 1.6, 1.9), [], ELEMENTS)
    assert chosen is not None and chosen.candidate is None and chosen.below


@pytest.mark.parametrize(
    "others",
    {
        "not certainly": [attempt("other", 1.0, 1.2, 1.3)],
        "slower in between": [attempt("other", 0.5, 2.4, 1.3)],
        "too little": [attempt("other", 1.0, 1.2, 1.3, spread=0.01)],
        "the winner itself": [attempt("best", 1.4, 1.6, 1.9)],
        "nothing": [],
    }.items(),
    ids=str,
)
def test_nobody_else_where_it_does_not_pay(others: tuple[str, list[Attempt]]) -> None:
    best = attempt("best", 0.98, 1.6, 1.9, spread=0.01 if others[0] == "too little" else 0.06)
    assert second(best, others[1], ELEMENTS) is None


def test_hidden_sizes_decide_nothing() -> None:
    best, other = attempt("best", 0.98, 1.6, 1.9, hidden=2), attempt("other", 1.0, 1.2, 3.0, hidden=2)
    assert second(best, [other], ELEMENTS) is None


def test_as_many_elements_are_not_told_apart() -> None:
    assert second(BEST, [attempt("other", 1.4, 1.2, 1.3)], (8000, 8000, 64000)) is None


def test_a_candidate_that_failed_at_a_size_is_not_asked() -> None:
    wrong = attempt("other", 1.4, 1.2)
    failed = wrong.evaluation.model_copy(update={"verdict": Verdict.wrong_output})
    assert second(BEST, [Attempt(wrong.candidate, failed, None)], ELEMENTS) is None
