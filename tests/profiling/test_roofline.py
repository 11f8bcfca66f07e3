"""The roofline of a timed candidate, by hand."""

import pytest

from kernelwright.kernelbench.records import ProductPrecision, Work
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import in_words, overhead_us, roofline, with_floor, with_launches
from tests.helpers.gpu.h100 import H100
from tests.helpers.profiling.evaluated import TARGET, evaluation_of

SIZE = 4096
FLOPS = 2 * SIZE**3


def product(flops: dict[ProductPrecision, int], element_bytes: int = 2) -> Work:
    """Work of a product of square matrices, with FLOPs by precision."""
    matrix = element_bytes * SIZE**2
    total = sum(flops.values())
    return Work(input_bytes=2 * matrix, weight_bytes=0, output_bytes=matrix, flops=total, products=flops)


def on_h100(work: Work, time_us: float, **ceilings: float | None) -> Profile:
    target = H100.model_copy(update={"ceilings": H100.ceilings.model_copy(update=ceilings)})
    profile = roofline(work, target, evaluation_of(time_us))
    assert profile is not None
    return profile


def test_a_copy_is_bound_by_memory() -> None:
    work = Work(input_bytes=40_000_000, weight_bytes=0, output_bytes=40_000_000, flops=0)
    profile = roofline(work, TARGET, evaluation_of(8000.0))
    assert profile is not None
    assert profile.bottleneck == "memory" and profile.ceiling == "memory bandwidth"
    assert profile.value("memory_floor") == pytest.approx(4000.0)
    assert profile.value("achieved_bandwidth") == pytest.approx(10e9)
    assert profile.speed_of_light == pytest.approx(0.5)


def test_the_floor_of_an_older_evaluation_is_that_of_its_profile() -> None:
    """A share of 0.5 of 8000 µs is a floor of 4000 µs; one that is known stays as it is."""
    work = Work(input_bytes=40_000_000, weight_bytes=0, output_bytes=40_000_000, flops=0)
    old = evaluation_of(8000.0)
    found = with_floor(old, roofline(work, TARGET, old))
    assert found.timing is not None and found.timing.floor_us == pytest.approx(4000.0)
    known = found.timing.model_copy(update={"floor_us": 1000.0})
    newer = found.model_copy(update={"timing": known})
    assert with_floor(newer, roofline(work, TARGET, newer)) == newer
    assert with_floor(old, None) == old and with_floor(evaluation_of(), None) == evaluation_of()


def test_a_large_product_is_bound_by_arithmetic() -> None:
    n = 2048
    flops = 2 * n**3
    work = Work(
        input_bytes=8 * n * n, weight_bytes=0, output_bytes=4 * n * n, flops=flops, products={"fp32": flops}
    )
    profile = roofline(work, TARGET, evaluation_of(100_000.0))
    assert profile is not None
    assert profile.bottleneck == "compute" and profile.ceiling == "fp32 products"
    assert profile.speed_of_light == pytest.approx(flops / 200e9 / 0.1)


@pytest.mark.parametrize(
    ("precision", "tflops_s"),
    [("fp32", 51), ("tf32", 420), ("fp16", 780), ("bf16", 800), ("fp8", 1500), ("int8", 1500)],
)
def test_a_product_is_held_against_the_ceiling_of_its_precision(
    precision: ProductPrecision, tflops_s: float
) -> None:
    """At what libraries reach on an H100 it is near the speed of light; at the published peak it is there."""
    fast = on_h100(product({precision: FLOPS}), 1e-6 * FLOPS / tflops_s)
    assert 0.7 < fast.speed_of_light < 0.9  # type: ignore[operator]
    assert fast.bottleneck == "compute" and fast.ceiling == f"{precision} products"
    peak = getattr(H100.ceilings, f"{precision}_flops_s")
    assert on_h100(product({precision: FLOPS}), 1e6 * FLOPS / peak).speed_of_light == pytest.approx(1.0)


def test_products_of_several_precisions_add_up() -> None:
    profile = on_h100(product({"bf16": FLOPS, "fp32": FLOPS}), 4000.0)
    assert profile.value("compute_floor") == pytest.approx(1e6 * FLOPS * (1 / 989e12 + 1 / 67e12))
    assert profile.ceiling == "bf16 products and fp32 products"


def test_operands_of_unknown_type_may_have_the_fastest_ceiling() -> None:
    work = product({}).model_copy(update={"flops": FLOPS})
    profile = on_h100(work, 1e6 * FLOPS / 1979e12)
    assert profile.speed_of_light == pytest.approx(1.0)
    assert profile.ceiling == "untyped products, in fp8"


def test_a_precision_that_was_not_measured_has_the_next_one_s_ceiling_and_says_so() -> None:
    profile = on_h100(product({"fp8": FLOPS}), 1e6 * FLOPS / 989e12, fp8_flops_s=None)
    assert profile.speed_of_light == pytest.approx(1.0) and profile.ceiling == "fp8 products, in fp16"
    none = {f"{name}_flops_s": None for name in ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")}
    assert on_h100(product({"bf16": FLOPS}), 100.0, **none).speed_of_light is None


def test_a_bf16_product_at_the_ceiling_of_fp32_shows_that_to_be_wrong() -> None:
    only_fp32 = {f"{name}_flops_s": None for name in ("tf32", "fp16", "bf16", "fp8", "int8")}
    profile = on_h100(product({"bf16": FLOPS}), 1e-6 * FLOPS / 650, **only_fp32)
    assert profile.speed_of_light == pytest.approx(650 / 67) and profile.share_of_light is None
    assert "the ceiling of bf16 products, in fp32 is wrong" in in_words(profile)


def test_a_tiny_call_is_overhead() -> None:
    work = Work(input_bytes=1000, weight_bytes=0, output_bytes=1000, flops=0)
    profile = roofline(work, TARGET, evaluation_of(20.0))
    assert profile is not None and profile.bottleneck == "overhead"


def test_on_a_gpu_a_call_of_24_us_is_work() -> None:
    """A relu of 32 MiB in and out, at 84% of the bandwidth; with ten launches it would be overhead."""
    assert overhead_us("cpu") == 50 and overhead_us("cuda:0") == 5 and overhead_us("cuda:1", 10) == 23
    work = Work(input_bytes=32 << 20, weight_bytes=0, output_bytes=32 << 20, flops=0)
    profile = on_h100(work, 24.0)
    assert profile.bottleneck == "memory" and profile.speed_of_light == pytest.approx(0.83, abs=0.01)
    assert on_h100(work.model_copy(update={"input_bytes": 4096}), 4.0).bottleneck == "overhead"
    for launches, bottleneck in ((1, "memory"), (10, "memory"), (12, "overhead")):
        traced = profile.model_copy(update={"metrics": (metric("launches", launches),)})
        evaluation = evaluation_of(24.0).model_copy(update={"target": H100})
        assert with_launches(traced, evaluation).bottleneck == bottleneck


def test_without_a_time_there_is_no_profile() -> None:
    work = Work(input_bytes=1, weight_bytes=0, output_bytes=1, flops=0)
    assert roofline(work, TARGET, evaluation_of(None)) is None
