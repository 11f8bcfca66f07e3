"""pass@k, best@k and fast_p from graded replies."""

import itertools
import math

import pytest

from kernelwright.kernelbench.records import Interval, Speedup, Verdict
from kernelwright.rl_training.evaluation.report import ratio
from kernelwright.rl_training.evaluation.scores import GradedSample, best_at_k, by_family, pass_at_k, scores
from kernelwright.rl_training.outcome import Outcome, failed


def sample(
    task: str, number: int, low: float | None, confirmed: float | None = None, family: str = "one"
) -> GradedSample:
    """`low` None: wrong."""
    if low is None:
        outcome = Outcome(verdict=Verdict.wrong_output)
    else:
        speedup = Speedup(eager=Interval(median=low, low=low, high=low))
        outcome = Outcome(verdict=Verdict.correct, speedup=speedup, own_kernel_share=0.9)
    confirmed = low if confirmed is None else confirmed
    return GradedSample(task=task, family=family, number=number, outcome=outcome, confirmed=confirmed)


def test_pass_at_k_is_the_share_of_choices_that_hold_a_right_one() -> None:
    right = [True, False, False, True, False]
    for k in range(1, 6):
        choices = list(itertools.combinations(right, k))
        assert pass_at_k(5, 2, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_best_at_k_is_picked_by_one_measurement_and_counts_by_another() -> None:
    some = [sample("a", 0, 1.5, 1.4), sample("a", 1, 3.0, 1.2), sample("a", 2, None)]
    assert best_at_k(some, 1) == pytest.approx((1.4 * 1.2 * 1.0) ** (1 / 3))
    assert best_at_k(some, 3) == pytest.approx(1.2)  # the one that looked the fastest
    slow = [sample("a", 0, 0.5)]
    assert best_at_k(slow, 1) == 1.0  # the reference stays


def test_scores_are_means_over_tasks() -> None:
    found = scores(
        [sample("a", 0, 2.5), sample("a", 1, None), sample("b", 0, 0.8), sample("b", 1, 1.5)], (1, 2)
    )
    assert found.pass_at == {1: 0.75, 2: 1.0}
    assert found.fast == {1.0: {1: 0.5, 2: 1.0}, 2.0: {1: 0.25, 2: 0.5}}
    assert found.best_at[2] == pytest.approx(math.sqrt(2.5 * 1.5))


def test_a_reply_without_a_verdict_is_not_a_wrong_one() -> None:
    silent = GradedSample(task="a", family="one", number=1, outcome=failed("evaluator", "a worker died"))
    found = scores([sample("a", 0, 2.0), silent], (1, 2))
    assert found.pass_at == {1: 1.0} and (found.replies, found.without_verdict) == (2, 1)
    assert scores([silent], (1,)).pass_at == {}


def test_a_decoy_is_not_right() -> None:
    right = sample("a", 0, 2.0)
    decoy = right.model_copy(update={"outcome": right.outcome.model_copy(update={"own_kernel_share": 0.01})})
    assert scores([decoy], (1,)).pass_at == {1: 0.0}


def test_families_are_apart() -> None:
    found = by_family([sample("a", 0, 2.0, family="sum"), sample("b", 0, None, family="product")], (1,))
    assert {family: each.pass_at[1] for family, each in found.items()} == {"product": 0.0, "sum": 1.0}


def test_the_ratio_is_by_task_with_an_interval() -> None:
    policy = [sample(str(task), 0, 2.0 + task / 10) for task in range(10)]
    base = [sample(str(task), n, 1.0 + n / 10) for task in range(10) for n in range(4)]
    found = ratio(policy, base, 4)
    assert found is not None and found.low < found.median < found.high
    assert found.median == pytest.approx(math.prod((2 + t / 10) / 1.3 for t in range(10)) ** 0.1)
    assert ratio(policy, [], 4) is None
