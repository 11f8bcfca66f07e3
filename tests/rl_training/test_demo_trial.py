"""What best of n is taken to be, and what a resumed demo tells its policies."""

import math
from itertools import combinations
from pathlib import Path

import pytest

from kernelwright.rl_training.demo.demo import Demo
from kernelwright.rl_training.demo.settings import SHORT
from kernelwright.rl_training.demo.trial import expected_best
from tests.helpers.anywhere import TARGET

PICKS, VALUES = [3.0, 0.0, 2.0, 5.0], [2.0, 1.0, 4.0, 3.0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_expected_best_is_the_mean_over_all_choices(n: int) -> None:
    worth = [VALUES[max(chosen, key=lambda place: PICKS[place])] for chosen in combinations(range(4), n)]
    mean = math.exp(sum(map(math.log, worth)) / len(worth))
    assert expected_best(PICKS, VALUES, n) == pytest.approx(mean)


def test_what_is_picked_counts_by_its_other_measurement() -> None:
    assert expected_best(PICKS, VALUES, 4) == pytest.approx(3.0)


def test_a_resumed_demo_has_the_rates_of_its_start_in_its_prompts(tmp_path: Path) -> None:
    """Measured again they differ by what else the machine does, and with them every prompt."""
    busier = TARGET.model_copy(update={"languages": ()})
    assert Demo(SHORT, tmp_path, print)._target(TARGET) == TARGET
    assert Demo(SHORT, tmp_path, print)._target(busier) == TARGET != busier
