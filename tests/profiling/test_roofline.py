"""The roofline of a timed candidate, by hand."""

import pytest

from kernelwright.kernelbench.records import Work
from kernelwright.profiling.roofline import roofline
from tests.helpers.profiling.evaluated import TARGET, evaluation_of


def test_a_copy_is_bound_by_memory() -> None:
    work = Work(input_bytes=40_000_000, weight_bytes=0, output_bytes=40_000_000, flops=0)
    profile = roofline(work, TARGET, evaluation_of(8000.0))
    assert profile is not None
    assert profile.bottleneck == "memory"
    assert profile.value("memory_floor") == pytest.approx(4000.0)
    assert profile.value("achieved_bandwidth") == pytest.approx(10e9)
    assert profile.speed_of_light == pytest.approx(0.5)


def test_a_large_product_is_bound_by_arithmetic() -> None:
    n = 2048
    work = Work(input_bytes=8 * n * n, weight_bytes=0, output_bytes=4 * n * n, flops=2 * n**3)
    profile = roofline(work, TARGET, evaluation_of(100_000.0))
    assert profile is not None
    assert profile.bottleneck == "compute"
    assert profile.speed_of_light == pytest.approx(2 * n**3 / 200e9 / 0.1)


def test_a_tiny_call_is_overhead() -> None:
    work = Work(input_bytes=1000, weight_bytes=0, output_bytes=1000, flops=0)
    profile = roofline(work, TARGET, evaluation_of(20.0))
    assert profile is not None and profile.bottleneck == "overhead"


def test_without_a_time_there_is_no_profile() -> None:
    work = Work(input_bytes=1, weight_bytes=0, output_bytes=1, flops=0)
    assert roofline(work, TARGET, evaluation_of(None)) is None
