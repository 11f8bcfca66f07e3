"""What best of n is taken to be."""

import math
from itertools import combinations

import pytest

from kernelwright.rl_training.evaluation.scores import expected_best

PICKS, VALUES = [3.0, 0.0, 2.0, 5.0], [2.0, 1.0, 4.0, 3.0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_expected_best_is_the_mean_over_all_choices(n: int) -> None:
    worth = [VALUES[max(chosen, key=lambda place: PICKS[place])] for chosen in combinations(range(4), n)]
    mean = math.exp(sum(map(math.log, worth)) / len(worth))
    assert expected_best(PICKS, VALUES, n) == pytest.approx(mean)


def test_what_is_picked_counts_by_its_other_measurement() -> None:
    assert expected_best(PICKS, VALUES, 4) == pytest.approx(3.0)
