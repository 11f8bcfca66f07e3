"""The speed-of-light score, on times whose scores can be worked out by hand."""

import pytest

from kernelwright.kernelbench.records import Candidate, Interval
from kernelwright.profiling.records import Profile
from kernelwright.profiling.speed_of_light import score_of, speed_of_light_score
from tests.helpers.attempts import attempt


@pytest.mark.parametrize(
    ("time_us", "score"), [(80.0, 0.5), (50.0, 2 / 3), (20.0, 1.0), (200.0, 0.25), (19.5, 1.0)]
)
def test_the_reference_scores_a_half_and_the_floor_one(time_us: float, score: float) -> None:
    assert speed_of_light_score(time_us, floor_us=20.0, reference_us=80.0) == pytest.approx(score)


def test_what_is_faster_than_the_floor_has_no_score() -> None:
    assert speed_of_light_score(15.0, floor_us=20.0, reference_us=80.0) is None


def test_a_reference_at_the_floor_leaves_nothing_to_score() -> None:
    assert speed_of_light_score(20.0, floor_us=20.0, reference_us=20.0) is None
    assert speed_of_light_score(40.0, floor_us=20.0, reference_us=15.0) is None


def test_the_score_of_an_evaluation_is_against_eager() -> None:
    found = attempt(Candidate(source="", language="cpp", author="file"), 50.0).evaluation
    profile = Profile(metrics=(), bottleneck="memory", speed_of_light=0.4)  # a floor of 20 µs
    assert score_of(found, profile) is None  # eager was not timed
    assert found.timing is not None
    eager = found.timing.model_copy(update={"eager_us": Interval(median=80.0, low=79.0, high=81.0)})
    timed = found.model_copy(update={"timing": eager})
    assert score_of(timed, profile) == pytest.approx(2 / 3)
    assert score_of(timed, None) is None
    assert score_of(timed, profile.model_copy(update={"speed_of_light": None})) is None
