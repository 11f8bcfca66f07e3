"""Calls that were answered together are told from calls that were computed one by one."""

import numpy as np
import pytest

from kernelwright.kernelbench.evaluator.timing.alone import Alone, estimate
from kernelwright.kernelbench.evaluator.timing.statistics import TimedBlock, Timings

FIXED_S = 1e-3


# A candidate's process may save half of what a block costs once, here 0.5 ms of 20 calls of 0.5 ms: nor is that merit.
LEAN = 0.5 / (0.5 + 0.5 / 20)


def told(
    candidate_us: float,
    eager_us: float,
    alone_us: tuple[float, float],
    jitter: float = 0.03,
    load: float = 1.0,
    seed: int = 0,
    launch_us: float = 0.0,
) -> Alone:
    """The estimate from 24 phases and 96 calls alone, these as in `alone_us`, for candidate and eager.

    `jitter`: of what a block costs once, one-sided. `load`: how many times as long blocks take. `launch_us`:
    in which a call of eager is launched on a GPU.
    """
    generator = np.random.default_rng(seed)

    def late(count: int) -> np.ndarray:
        return FIXED_S * (1 + generator.exponential(jitter, count))

    block_s = load * 1e-6 * np.array([[candidate_us], [eager_us]]) * generator.normal(1, 0.02, (2, 24))
    alone_s = np.array([late(96) + 1e-6 * us for us in alone_us])
    return estimate(block_s, alone_s, late(36), 1e-6 * launch_us)


def test_who_answers_all_calls_by_one_product_is_as_slow_as_alone() -> None:
    found = told(300, 1700, (1750, 1750))
    assert found.factor == pytest.approx(1700 / 300, rel=0.1)


@pytest.mark.parametrize("eager_us", [40, 200, 1700, 40_000])
@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("load", [1.0, 2.5])
def test_who_computes_call_by_call_is_not_touched(eager_us: float, speedup: float, load: float) -> None:
    """Though alone it wakes threads, 60 µs, and finds a part of its data in no cache, and blocks are slow."""
    candidate_us = eager_us / speedup
    alone_us = (60 + 1.2 * candidate_us, 60 + 1.2 * eager_us)
    for seed in range(20):
        assert told(candidate_us, eager_us, alone_us, load=load, seed=seed).factor == 1.0


def test_launches_that_nothing_hides_are_no_sign() -> None:
    """Eager's kernels of 3 ms hide its launches of 0.25 ms, and the candidate's of 0.3 ms do in blocks only."""
    for seed in range(20):
        assert told(300, 3000, (580, 3010), jitter=0.005, launch_us=250, seed=seed).factor == 1.0
        assert told(300, 3000, (580, 3010), jitter=0.005, seed=seed).factor > 1.5  # on a CPU, which has none


def test_launches_are_no_excuse_for_calls_that_take_long() -> None:
    """A call of eager that waits for its kernels seems to be launched in 2 ms, a block's call is in 0.2 ms."""
    for launch_us, excused_us in ((180, 180), (2000, 200)):
        found = told(200, 2000, (2010, 2010), jitter=0.005, launch_us=launch_us)
        assert found.factor == pytest.approx((2000 - excused_us) / 200, rel=0.05)


def test_few_calls_say_nothing() -> None:
    few = np.ones((2, 3))
    assert estimate(few, few, np.ones(3)) == Alone(1.0, np.inf)


def timings(waited_s: list[float], alone_us: float, overhead_us: float = 0.0) -> Timings:
    """A candidate of 0.5 ms beside an eager of 1 ms, blocks of 20 calls, 12 phases of one process."""
    waited = np.resize(waited_s, 12)
    blocks = {
        name: [TimedBlock(20, FIXED_S + 20 * call_s, float(w)) for w in waited]
        for name, call_s in (("candidate", 5e-4), ("eager", 1e-3))
    }
    alone_s = {"candidate": [FIXED_S + 1e-6 * alone_us] * 12, "eager": [FIXED_S + 1e-3] * 12}
    return Timings(blocks, [FIXED_S] * 12, [0] * 12, alone_s, 1e-6 * overhead_us)


def test_the_slower_time_counts_in_every_number() -> None:
    found = timings([0.0], alone_us=1000)
    assert found.alone.factor == pytest.approx(2)
    assert found.speedup("eager").median == pytest.approx(1)
    assert found.time_us("candidate").median == pytest.approx(1000)


def test_where_nothing_was_undisturbed_the_interval_reaches_down_to_what_single_calls_allow() -> None:
    """A call alone of 0.55 ms is no clear sign, but on a busy machine what blocks say is none either."""
    quiet, busy = timings([0.0], alone_us=550), timings([0.0, 0.002, 0.004, 0.008], alone_us=550)
    assert not quiet.busy and quiet.speedup("eager").low == pytest.approx(2 * LEAN)
    assert busy.busy and busy.speedup("eager").low == pytest.approx(1 / 0.55)
    assert busy.speedup("eager").median == pytest.approx(2)


def test_what_the_workers_loop_adds_to_a_call_is_no_candidates_merit() -> None:
    """A candidate can replace that loop: of eager's millisecond, 0.1 ms are not its kernels' time."""
    found = timings([0.0], alone_us=500, overhead_us=100)
    assert found.speedup("eager").median == pytest.approx(2)
    assert found.speedup("eager").low == pytest.approx(1.8 * LEAN)
