"""The speed-of-light score, on times whose scores can be worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.records import (
    Ceilings,
    Evaluation,
    Interval,
    ProductPrecision,
    Speedup,
    Verdict,
    Work,
)
from kernelwright.kernelbench.speed_of_light import (
    BEYOND,
    below_floor,
    floor_us,
    lowest_score,
    score_in_words,
    score_of,
    share_of_light,
    speed_of_light_score,
    trusted_share,
)
from tests.helpers.profiling.evaluated import evaluation_of

COPY = Work(input_bytes=40_000_000, weight_bytes=0, output_bytes=40_000_000, flops=0)
CEILINGS = Ceilings(
    copy_bytes_s=20e9, cached_copy_bytes_s=None, fp32_flops_s=200e9, bf16_flops_s=400e9, int8_flops_s=800e9
)
TIMES = st.floats(min_value=1e-3, max_value=1e7)


def exact(us: float) -> Interval:
    return Interval(median=us, low=us, high=us)


def timed(us: float, eager: float | None, floor: float | None) -> Evaluation:
    found = evaluation_of(us)
    assert found.timing is not None
    timing = found.timing.model_copy(update={"floor_us": floor})
    speedup = Speedup(eager=exact(eager / us)) if eager is not None else None
    return found.model_copy(update={"timing": timing, "speedup": speedup})


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


@given(TIMES, TIMES, TIMES)
def test_it_is_above_0_and_at_most_1_where_there_is_one(time: float, floor: float, reference: float) -> None:
    score = speed_of_light_score(time, floor, reference)
    assert (score is None) == (floor > BEYOND * time or reference <= floor)
    assert score is None or 0 < score <= 1


@given(TIMES, st.floats(1.001, 1e3), st.floats(1, 1e3))
def test_it_is_above_a_half_where_it_is_faster_than_the_reference(
    floor: float, reference: float, time: float
) -> None:
    score = speed_of_light_score(floor * time, floor, floor * reference)
    assert score is not None
    if time < reference:
        assert score >= 0.5
    if time > reference:
        assert score <= 0.5


@given(TIMES, st.floats(1.001, 1e3), st.floats(1, 1e3), st.floats(1, 1e3))
def test_a_faster_kernel_never_scores_less(floor: float, reference: float, one: float, other: float) -> None:
    fast, slow = sorted((one, other))
    of_fast = speed_of_light_score(floor * fast, floor, floor * reference)
    of_slow = speed_of_light_score(floor * slow, floor, floor * reference)
    assert of_fast is not None and of_slow is not None and of_fast >= of_slow


@given(TIMES, st.floats(1.01, 1e3), st.floats(1, 1e3), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(floor: float, reference: float, time: float, unit: float) -> None:
    score = speed_of_light_score(floor * time, floor, floor * reference)
    other = speed_of_light_score(unit * floor * time, unit * floor, unit * floor * reference)
    assert score is not None and other == pytest.approx(score, rel=1e-6)


def test_the_score_of_an_evaluation_is_against_eager() -> None:
    assert score_of(timed(50.0, eager=80.0, floor=20.0)) == pytest.approx(2 / 3)
    assert score_of(timed(50.0, eager=None, floor=20.0)) is None
    assert score_of(timed(50.0, eager=80.0, floor=None)) is None  # its ceilings were not measured
    assert score_of(evaluation_of()) is None  # not timed


def test_a_kernel_scores_above_a_half_where_its_speedup_is_above_1() -> None:
    """Their medians, 50 and 49 µs, say otherwise, as on a busy machine: T_ref is 50 x 1.2 = 60 µs."""
    found = timed(50.0, eager=60.0, floor=20.0)
    assert found.timing is not None
    beside = found.timing.model_copy(update={"eager_us": exact(49.0)})
    assert score_of(found.model_copy(update={"timing": beside})) == pytest.approx(40 / 70)


def test_the_lowest_score_is_that_at_the_lower_bound_of_the_speedup() -> None:
    """Eager takes 80 µs, the kernel 50, at the worst 64: 60 / (60 + 44)."""
    found = timed(50.0, eager=80.0, floor=20.0)
    wide = Speedup(eager=Interval(median=1.6, low=1.25, high=2.0))
    assert lowest_score(found.model_copy(update={"speedup": wide})) == pytest.approx(60 / 104)
    assert lowest_score(found) == pytest.approx(score_of(found))
    assert lowest_score(timed(50.0, eager=80.0, floor=None)) is None


def test_what_is_not_correct_has_none() -> None:
    fast = timed(50.0, eager=80.0, floor=20.0).model_copy(update={"verdict": Verdict.implausible})
    assert score_of(fast) is None and share_of_light(fast) is None and score_in_words(fast) == ""


def test_a_time_below_the_floor_is_told_from_an_unknown_floor() -> None:
    """20 / 15 = 1.33 of the floor is no noise, 20 / 19.5 = 1.03 may be."""
    beyond, near, unknown = (timed(15.0, 80.0, 20.0), timed(19.5, 80.0, 20.0), timed(15.0, 80.0, None))
    assert [below_floor(each) for each in (beyond, near, unknown)] == [True, False, False]
    assert trusted_share(beyond) is None and trusted_share(near) == pytest.approx(20 / 19.5)
    assert score_in_words(beyond).startswith("none: 1.33 times faster than the floor")
    assert score_in_words(near) == "1.00; at most 1.00 times faster is left"
    assert score_in_words(unknown) == ""


def test_what_is_left_is_said_where_eager_is_at_the_floor_too() -> None:
    assert score_in_words(timed(50.0, eager=80.0, floor=20.0)) == "0.67; at most 2.50 times faster is left"
    assert score_in_words(timed(25.0, eager=20.0, floor=20.0)) == (
        "none, for eager is at the floor; at most 1.25 times faster is left"
    )


def test_the_floor_is_what_takes_longer() -> None:
    """80 MB take 4 ms at 20 GB/s, and 1.2 GFLOP 6 ms at the 200 GFLOP/s of fp32."""
    assert floor_us(COPY, CEILINGS) == pytest.approx(4000)
    assert floor_us(COPY.model_copy(update={"flops": 1_200_000_000}), CEILINGS) is not None
    product = COPY.model_copy(update={"flops": 1_200_000_000, "products": {"fp32": 1_200_000_000}})
    assert floor_us(product, CEILINGS) == pytest.approx(6000)


@pytest.mark.parametrize(
    ("precision", "floor"),
    [
        ("fp32", 16_000.0),
        ("bf16", 8_000.0),  # 3.2 GFLOP at 400 GFLOP/s
        ("fp16", 16_000.0),  # not measured here: fp32 holds its operands
        ("int8", 4_000.0),
        ("fp8", 8_000.0),  # bf16 holds its operands
    ],
)
def test_products_are_held_against_the_ceiling_of_their_precision(
    precision: ProductPrecision, floor: float
) -> None:
    flops = 3_200_000_000
    work = Work(input_bytes=8, weight_bytes=0, output_bytes=8, flops=flops, products={precision: flops})
    assert floor_us(work, CEILINGS) == pytest.approx(floor)


def test_traffic_beside_the_candidate_stands_for_the_bandwidth() -> None:
    assert floor_us(COPY, CEILINGS, exact(5000.0)) == pytest.approx(5000)


def test_a_ceiling_that_was_not_measured_leaves_no_floor() -> None:
    without = CEILINGS.model_copy(update={"copy_bytes_s": None})
    assert floor_us(COPY, without) is None
    assert floor_us(COPY, without, exact(5000.0)) == pytest.approx(5000)
    product = COPY.model_copy(update={"flops": 10**9, "products": {"fp32": 10**9}})
    no_peaks = Ceilings(copy_bytes_s=20e9, cached_copy_bytes_s=None, fp32_flops_s=None)
    assert floor_us(product, no_peaks) is None and floor_us(COPY, no_peaks) == pytest.approx(4000)


def test_no_work_leaves_an_endless_gain_unsaid() -> None:
    nothing = timed(50.0, eager=80.0, floor=0.0)
    assert score_in_words(nothing) == "" and math.isclose(score_of(nothing) or 0.0, 80 / 130)
