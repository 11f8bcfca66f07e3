"""Timing of a package: rounds that other work disturbed are left out, and an interval is given."""

import time

import pytest

from kernelwright.results.dropin.runtime.timing import BlockPair, WaitedBlock, undisturbed, versus


def rounds(*waited: tuple[float, float]) -> list[BlockPair]:
    return [
        BlockPair(WaitedBlock(2.0, reference), WaitedBlock(1.0, drop_in)) for reference, drop_in in waited
    ]


def test_rounds_in_which_a_side_waited_unusually_are_left_out() -> None:
    given = rounds((0.3, 0.0), (0.3, 0.005), (0.3, 0.2), (0.5, 0.0), (0.305, 0.0))
    kept, busy = undisturbed(given)
    assert kept == [given[0], given[1], given[4]] and not busy


def test_half_is_kept_of_a_busy_machine_and_that_is_told() -> None:
    given = rounds((0.0, 0.0), (0.1, 0.0), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5))
    kept, busy = undisturbed(given)
    assert len(kept) == 3 and busy


def test_the_interval_holds_the_speedup() -> None:
    found = versus(lambda: time.sleep(0.004), lambda: time.sleep(0.002))
    assert found["speedup"] == pytest.approx(found["reference_us"] / found["drop_in_us"])
    assert found["speedup_low"] <= found["speedup"] <= found["speedup_high"]


def test_threads_that_want_the_cpu_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright.results.dropin.runtime import timing

    counted = iter([0.0, 0.25])
    monkeypatch.setattr(timing, "_waited_s", lambda: next(counted))
    block = timing._block(lambda: time.sleep(0.5), 1)
    assert 0.3 < block.waited <= 0.5
