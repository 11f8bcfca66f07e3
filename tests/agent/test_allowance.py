"""Evaluations are counted before they begin; every task that has had one can have its winner measured."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelwright.agent.spending.budget import BudgetSpent, Evaluations, SpendingLimits
from kernelwright.kernelbench.records import PartOf, Task


def test_one_is_kept_for_the_winner_of_each_task() -> None:
    evaluations = Evaluations(run=5)
    evaluations.begin("a")
    evaluations.begin("b")  # with one kept for each, four are gone
    evaluations.begin("a")
    with pytest.raises(BudgetSpent, match="5 evaluations are spent"):
        evaluations.begin("b")
    assert evaluations.spent("c") == "5 evaluations are spent, or kept for winners"
    assert (evaluations.left("a"), evaluations.left("c")) == (0, 0)
    evaluations.begin_last("a")
    evaluations.begin_last("b")
    with pytest.raises(BudgetSpent):
        evaluations.begin_last("a")


def test_what_a_task_does_not_need_others_have() -> None:
    evaluations = Evaluations(run=4)
    evaluations.begin("a")
    evaluations.begin("a")
    evaluations.begin("a")
    with pytest.raises(BudgetSpent):
        evaluations.begin("a")
    evaluations.done("a")  # none of them was correct
    with pytest.raises(BudgetSpent, match="4 evaluations"):
        evaluations.begin("b")  # it could not be measured again


def test_those_of_a_task_are_limited_apart() -> None:
    evaluations = Evaluations(task=3)
    for task in ("a", "b"):
        evaluations.begin(task)
        evaluations.begin(task)
        with pytest.raises(BudgetSpent, match="3 evaluations are spent on this task"):
            evaluations.begin(task)
        evaluations.begin_last(task)
    assert evaluations.spent("c") is None and evaluations.left("c") == 2


def test_a_run_that_goes_on_has_had_what_it_had() -> None:
    evaluations = Evaluations(run=6, had={"a": 2, "b": 1}, unfinished=["b"])
    evaluations.begin("b")  # one was kept for it already
    assert evaluations.spent("c") is not None  # a new task takes two
    assert evaluations.spent("b") is None and evaluations.left("b") == 1
    evaluations.begin("b")
    with pytest.raises(BudgetSpent):
        evaluations.begin("b")


def part(whole: str, name: str, share: float) -> Task:
    return Task(
        id=f"{whole}#{name}", level=3, source="", part=PartOf(whole=whole, places=((name,),), share=share)
    )


def test_two_are_kept_for_a_whole_whose_parts_have_had_any() -> None:
    evaluations = Evaluations(run=6, parts=[part("a", "x", 0.5), part("a", "y", 0.5)])
    evaluations.begin("a#x")  # one is kept for its winner, and two for the whole
    assert evaluations.left("a#x") == 2 and evaluations.left("b") == 1
    evaluations.begin_last("a#x")
    assert evaluations.left("a#y") == 1
    evaluations.begin("a#y")
    with pytest.raises(BudgetSpent):
        evaluations.begin("a#y")
    evaluations.begin_last("a#y")
    evaluations.begin("a")  # put together
    evaluations.begin_last("a")
    assert evaluations.total == 6


def test_a_task_with_its_parts_keeps_to_the_limit_of_a_task() -> None:
    """Three quarters of 16 are for the parts, half and a quarter of these for one each."""
    evaluations = Evaluations(task=16, parts=[part("a", "x", 0.5), part("a", "y", 0.25)])
    counts = {}
    for name in ("a#x", "a#y", "a"):
        while evaluations.spent(name) is None:
            evaluations.begin(name)
        evaluations.begin_last(name)
        counts[name] = evaluations.had(name)
    assert counts == {"a#x": 6, "a#y": 3, "a": 7}
    assert evaluations.spent("b") is None


def test_what_parts_had_before_a_run_went_on_counts() -> None:
    parts = [part("a", "x", 0.5), part("a", "y", 0.5)]
    had = {"a#x": 4, "a#y": 1}
    evaluations = Evaluations(run=9, task=12, had=had, unfinished=["a", "a#y"], parts=parts)
    assert evaluations.left("a#y") == 1  # of nine: five had, one for its winner, two for the whole


def test_limits_of_a_part_are_its_share_of_three_quarters() -> None:
    limits = SpendingLimits(usd=4.0, tokens=1000, evaluations=20, minutes=8.0)
    assert limits.of_part(part("a", "x", 0.5).part) == SpendingLimits(
        usd=1.5, tokens=375, evaluations=7, minutes=3.0
    )
    assert (
        limits.of_part(None) == limits
        and SpendingLimits().of_part(part("a", "x", 0.5).part) == SpendingLimits()
    )


def test_many_threads_never_overshoot() -> None:
    evaluations = Evaluations(run=40)
    begun = []

    def work(task: str) -> None:
        try:
            while True:
                evaluations.begin(task)
                begun.append(task)
        except BudgetSpent:
            if task in begun:
                evaluations.begin_last(task)
                begun.append(task)

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(work, "abcdefgh"))
    assert len(begun) <= 40 and len(begun) >= 40 - 1


def test_a_limit_that_is_given_replaces_the_one_before() -> None:
    first = SpendingLimits(usd=1.0, evaluations=10)
    assert first.replaced_by(SpendingLimits(usd=2.0, minutes=3)) == SpendingLimits(
        usd=2.0, evaluations=10, minutes=3
    )
