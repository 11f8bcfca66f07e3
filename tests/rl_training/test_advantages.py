"""Advantages against values computed by hand."""

import doctest
import math

import pytest

from kernelwright.rl_training.trainers import advantages as estimators
from kernelwright.rl_training.trainers.advantages import Credited, advantages


def group(*values: float | None, number: int = 0) -> list[Credited]:
    return [Credited(value, number) for value in values]


def test_the_mean_of_the_group() -> None:
    assert advantages(group(1.0, 2.0, 6.0), "dr_grpo") == [-2.0, -1.0, 3.0]


def test_deviations_of_the_group() -> None:
    # mean 3, deviations -2, -1, 3: the sample's standard deviation is sqrt(14 / 2)
    sigma = math.sqrt(7) + 1e-4
    assert advantages(group(1.0, 2.0, 6.0), "grpo") == pytest.approx([-2 / sigma, -1 / sigma, 3 / sigma])


def test_the_mean_of_the_others() -> None:
    assert advantages(group(1.0, 2.0, 6.0), "rloo") == [1 - 4.0, 2 - 3.5, 6 - 1.5]


def test_what_the_greedy_reply_earned() -> None:
    turns = [Credited(0.5, 0, greedy=True), *group(1.0, 0.25)]
    assert advantages(turns, "remax") == [0.0, 0.5, -0.25]


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo"])
def test_what_is_not_known_counts_nowhere(estimator: str) -> None:
    with_unknown = advantages(group(1.0, None, 2.0), estimator)  # type: ignore[arg-type]
    known = advantages(group(1.0, 2.0), estimator)  # type: ignore[arg-type]
    assert with_unknown == [known[0], 0.0, known[1]]


def test_groups_are_apart() -> None:
    assert advantages([*group(1.0, 3.0), *group(10.0, 20.0, number=1)], "dr_grpo") == [-1.0, 1.0, -5.0, 5.0]


def test_turns_are_held_against_their_like() -> None:
    """Kevin's mean is over all turns of a task; Dr.Kernel's others have the same place in their trajectories."""
    turns = [Credited(1.0, 0, 0), Credited(5.0, 0, 1), Credited(2.0, 0, 0), Credited(8.0, 0, 1)]
    assert advantages(turns, "dr_grpo") == [-3.0, 1.0, -2.0, 4.0]
    assert advantages(turns, "rloo") == [-1.0, -3.0, 1.0, 3.0]
    greedy = [Credited(1.0, 0, 0, True), Credited(5.0, 0, 1, True), Credited(2.0, 0, 0), Credited(8.0, 0, 1)]
    assert advantages(greedy, "remax") == [0.0, 0.0, 1.0, 3.0]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "remax"])
def test_one_alone_teaches_nothing(estimator: str) -> None:
    assert advantages(group(None, 2.0), estimator) == [0.0, 0.0]  # type: ignore[arg-type]


def test_the_worked_example_gives_what_it_says() -> None:
    result = doctest.testmod(estimators)
    assert result.attempted and not result.failed
