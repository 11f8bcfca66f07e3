"""What is believed of schedules: shared knobs teach, noise is averaged out, unknown values are worth a try."""

import doctest
import math
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import pytest

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner import gaussian_process
from kernelwright.agent.tuner.gaussian_process import Posterior, TimedSchedule, measured, timed
from kernelwright.kernelbench.records import Candidate
from tests.helpers.attempts import over_eager, slower

NOISE = 0.15
BLOCKS = ("64", "256", "1024", "4096", "16384")


def posterior(measured: Sequence[TimedSchedule], spread: float = 0.1) -> Posterior:
    return Posterior(measured, lambda knob: spread)


def schedule(vector: str, block: str = "64", streaming: str = "off") -> dict[str, str]:
    return {"vector": vector, "k0.block": block, "k0.streaming": streaming}


def true_speed(of: Mapping[str, str]) -> float:
    return 0.15 * (of["vector"] == "512") + 0.1 * (of["k0.streaming"] == "on")


def test_many_noisy_measurements_find_what_each_of_them_cannot() -> None:
    """The fastest of twenty noisy numbers is seldom the fastest schedule; the sum over knobs tells."""
    by_numbers, by_posterior, chance = 0, 0, Random(0)
    every = [schedule(*values) for values in product(("512", "256"), BLOCKS, ("off", "on"))]
    for _ in range(50):
        found = [TimedSchedule(each, true_speed(each) + chance.gauss(0, NOISE), NOISE) for each in every]
        by_numbers += true_speed(max(found, key=lambda one: one.speed).schedule) == pytest.approx(0.25)
        by_posterior += true_speed(found[posterior(found).best].schedule) == pytest.approx(0.25)
    assert by_posterior > 40 > by_numbers


def test_what_is_exactly_known_is_believed() -> None:
    found = [TimedSchedule(schedule("512"), 0.2, 0.0), TimedSchedule(schedule("256"), 0.0, 0.0)]
    known = posterior(found)
    assert known.best == 0
    [guess] = known.guesses(schedule("512"), [schedule("256")])
    assert guess.expected == pytest.approx(math.exp(-0.2), rel=0.02) and guess.hoped == pytest.approx(
        1, abs=1e-3
    )


def test_a_knob_that_lost_elsewhere_is_expected_to_lose_here() -> None:
    found = [TimedSchedule(schedule("512"), 0.0, 0.02), TimedSchedule(schedule("256"), -0.3, 0.02)]
    same, other = posterior(found).guesses(
        schedule("512"), [schedule("512", "16384"), schedule("256", "16384")]
    )
    assert other.expected < 0.9 < same.expected
    assert same.hoped > other.hoped


def test_more_is_hoped_of_what_may_do_more_and_of_values_farther_from_what_is_known() -> None:
    found = [TimedSchedule(schedule("512"), 0.0, 0.05), TimedSchedule(schedule("512", "256"), -0.05, 0.05)]
    wide, narrow = (
        posterior(found, spread).guesses(schedule("512"), [schedule("512", "16384")])[0]
        for spread in (0.2, 0.05)
    )
    assert wide.hoped > narrow.hoped > 1
    near, far = posterior(found).guesses(schedule("512"), [schedule("512", "128"), schedule("512", "16384")])
    assert far.hoped > near.hoped


def test_what_was_believed_before_gives_way_to_measurements() -> None:
    wide, narrow = schedule("512"), schedule("256")

    def before(schedule: Mapping[str, str]) -> float:
        return 0.2 if schedule["vector"] == "256" else 0.0

    none = Posterior([TimedSchedule(wide, 0.0, 0.05)], lambda knob: 0.1, before)
    assert none.guesses(wide, [narrow])[0].expected == pytest.approx(math.exp(0.2))
    found = [TimedSchedule(wide, 0.0, 0.05), *(TimedSchedule(schedule("256", b), -0.1, 0.05) for b in BLOCKS)]
    assert Posterior(found, lambda knob: 0.1, before).best == 0


def test_a_knob_that_only_one_of_two_has_teaches_nothing_of_the_other() -> None:
    found = [TimedSchedule(schedule("512"), 0.0, 0.05)]
    [same, without] = posterior(found).guesses(schedule("512"), [schedule("512"), {"vector": "512"}])
    assert same.hoped < without.hoped


def test_after_a_large_gain_more_is_hoped_of_other_moves() -> None:
    found = [
        TimedSchedule(schedule("512"), 0.0, 0.02),
        TimedSchedule(schedule("512", "4096"), math.log(1.5), 0.02),
    ]
    known = posterior(found, spread=0.05)
    assert known.best == 1
    [guess] = known.guesses(schedule("512", "4096"), [schedule("512", "4096", "on")])
    assert guess.hoped > 1.01


def test_measurements_are_by_way_of_eager_and_a_narrow_interval_is_not_believed_alone() -> None:
    def made(block: str, median: float, width: float) -> Attempt:
        knobs = schedule("512", block)
        candidate = Candidate(source=block, language="cpp", author="builtin", schedule=knobs)
        return over_eager(candidate, median, median * (1 - width), median * (1 + width))

    wide = [made(block, 1.2, 0.2) for block in BLOCKS[:4]]
    *others, lucky = measured([*wide, made("16384", 1.5, 0.001)])
    assert lucky.speed == pytest.approx(math.log(1.5)) and lucky.noise > 0.15
    assert all(each.noise == pytest.approx(1.3 * 0.2, rel=0.1) for each in others)
    endless = made("64", 1.0, 1.0)  # from zero
    assert measured([*wide, endless])[0].noise == pytest.approx(others[0].noise, rel=0.01)
    assert measured([endless])[0].noise == 1.0


def test_each_candidate_of_the_builtin_coder_counts_once() -> None:
    reference = Candidate(source="r", language="torch", author="builtin", schedule={"kernels": "none"})
    older = Candidate(source="o", language="cpp", author="builtin", schedule={"k0.blocks": "7"})
    model = Candidate(source="m", language="cpp", author="llm:m")
    others = [over_eager(each, 2.0, 1.9, 2.1) for each in (reference, older, model)]
    own = slower(0.9)
    assert timed([own, *others, own]) == [own]


def test_the_worked_example_gives_what_it_says() -> None:
    result = doctest.testmod(gaussian_process)
    assert result.attempted and not result.failed
