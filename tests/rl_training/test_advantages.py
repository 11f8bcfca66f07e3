"""Advantages against values computed by hand."""

import doctest
import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.trainers import advantages as estimators
from kernelwright.rl_training.trainers.advantages import Credited, EstimatorFailed, advantages


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


def best_of(values: Sequence[float], k: int) -> float:
    return statistics.fmean(map(max, itertools.combinations(values, k)))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_best_of_k_is_that_of_all_subsets(k: int) -> None:
    values = [0.4, 2.0, -1.0, 0.4, 3.5]
    wanted = []
    for place, value in enumerate(values):
        others = values[:place] + values[place + 1 :]
        best_with = statistics.fmean(
            max([value, *chosen]) for chosen in itertools.combinations(others, k - 1)
        )
        wanted.append(best_with - best_of(others, k))
    assert advantages(group(*values), "max_at_k", k) == pytest.approx(wanted)


def test_the_best_of_one_is_rloo() -> None:
    values = group(1.0, None, 2.0, 7.0)
    assert advantages(values, "max_at_k", 1) == pytest.approx(advantages(values, "rloo"))


def test_max_at_k_ascends_the_expected_best_of_k() -> None:
    """Enumerate a policy of three replies: the estimator's gradient is that of the expectation itself."""
    worth, k, size = torch.tensor([0.0, 1.0, 3.0]), 2, 3
    logits = torch.tensor([0.5, 0.2, -0.4], requires_grad=True)
    chances = logits.softmax(0)
    best = (chances[:, None] * chances * torch.maximum(worth[:, None], worth)).sum()
    (wanted,) = torch.autograd.grad(best, logits, retain_graph=True)
    found = torch.zeros(3)
    for replies in itertools.product(range(3), repeat=size):
        chance = math.prod(chances.tolist()[reply] for reply in replies)
        made = advantages(group(*(float(worth[reply]) for reply in replies)), "max_at_k", k)
        for reply, advantage in zip(replies, made, strict=True):
            (step,) = torch.autograd.grad(chances.log()[reply], logits, retain_graph=True)
            found += chance * k / size * advantage * step
    assert torch.allclose(found, wanted, atol=1e-6)


def test_the_whole_batch_has_a_mean_of_0_and_a_deviation_of_1() -> None:
    turns = [*group(1.0, 3.0, None), *group(10.0, 20.0, number=1)]
    for estimator in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        found = advantages(turns, estimator)
        learned = found[:2] + found[3:]
        assert found[2] == 0.0 and statistics.fmean(learned) == pytest.approx(0, abs=1e-9)
        assert statistics.stdev(learned) == pytest.approx(1, abs=1e-3)
    assert (
        advantages(turns, "reinforce_plus_plus_baseline")[1] > 0 > advantages(turns, "reinforce_plus_plus")[1]
    )


def test_an_estimator_may_be_a_function_of_the_user_s(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def signs(turns):\n    return [1 if (turn.value or 0) > 1 else -1 for turn in turns]\n"
        "def short(turns):\n    return [1.0]\n"
        "def fails(turns):\n    return [1 / 0 for turn in turns]\n"
    )
    assert advantages(group(1.0, None, 2.0), f"{file}:signs") == [-1.0, 0.0, 1.0]
    for name, why in (("short", "for 3 turns"), ("fails", "raised ZeroDivisionError")):
        with pytest.raises(EstimatorFailed, match=why):
            advantages(group(1.0, 2.0, 3.0), f"{file}:{name}")
    for name, why in ((f"{file}:nothing", "has no function"), ("nowhere.py:f", "does not exist")):
        with pytest.raises(UsageError, match=why):
            advantages(group(1.0, 2.0), name)


def test_the_worked_example_gives_what_it_says() -> None:
    result = doctest.testmod(estimators)
    assert result.attempted and not result.failed
