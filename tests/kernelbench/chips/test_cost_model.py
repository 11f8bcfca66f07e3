"""Predicted times: of streams that were measured elsewhere, and of what fills a device or does not."""

from dataclasses import replace

import pytest

from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.chips.cards import BY_NAME, CARDS, Card
from kernelwright.kernelbench.chips.cost_model import (
    STATED_ERROR,
    LaunchPrediction,
    bound_in_words,
    of_torch,
    predicted,
    predicted_call,
)
from kernelwright.kernelbench.chips.notes import Launched
from kernelwright.kernelbench.chips.ptx import parsing
from kernelwright.kernelbench.chips.ptx.tracing import LaunchArguments, trace
from kernelwright.kernelbench.chips.torch_call import TorchCall
from kernelwright.kernelbench.errors import Unavailable

H100 = CARDS["sm_90"]
ROWS = 4096
# A block a row of `columns` floats, added up by 256 threads.
SOURCE = """
extern "C" __global__ void sum(const float* x, float* y, int columns) {
    float total = 0;
    for (int at = threadIdx.x; at < columns; at += 256) total += x[blockIdx.x * (long long)columns + at];
    atomicAdd(y + blockIdx.x, total);
}
extern "C" __global__ void scale(const double* x, double* y, long long n) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < n) y[at] = x[at] * 1.2;
}
"""
X, Y = 1 << 36, 1 << 38


def launched(
    name: str, grid: int, threads: int, n: int, tensors: tuple[int, int], card: Card = H100, shared: int = 0
) -> Launched:
    code = nvrtc.code(SOURCE, nvrtc.accelerated(card.chip))
    [machine] = [kernel for kernel in sass.kernels(code.cubin) if kernel.name == name]
    assert card.latencies is not None
    arguments = LaunchArguments((threads, 1, 1), (X, Y, n), ((X, tensors[0]), (Y, tensors[1])))
    traced = trace(parsing.kernels(code.ptx)[name], (grid, 1, 1), arguments, card.latencies)
    registers, mix = machine.registers, sass.mix(machine)
    return Launched("NVRTC", name, 1, (grid, 1, 1), threads, 0, registers, 0, shared, 0, mix, mix, traced)


def rows(count: int, columns: int) -> LaunchPrediction:
    return predicted(launched("sum", count, 256, columns, (4 * count * columns, 4 * count)), H100)


# Published by RRZE: benchmarks/compiler/published_times.toml.
@pytest.mark.parametrize(
    ("name", "threads", "measured"),
    [
        ("NVIDIA A100-SXM4-80GB", 128, 579),
        ("NVIDIA A100-SXM4-80GB", 1024, 1737),
        ("NVIDIA GH200 480GB", 128, 854),
        ("NVIDIA GH200 480GB", 1024, 3174),
        ("NVIDIA L40S", 128, 774),
    ],
)
def test_a_published_stream_is_predicted_within_the_stated_error(
    name: str, threads: int, measured: float
) -> None:
    card, n = BY_NAME[name], 1 << 28
    half = 72 << 10 if card.chip != "sm_89" else 48 << 10  # of shared memory, so that two blocks fit
    half = {"sm_80": 80 << 10, "sm_90": 112 << 10}.get(card.chip, half)
    launch = launched("scale", n // threads, threads, n, (8 * n, 8 * n), card, half)
    bandwidth = 16 * n / predicted(launch, card).time_us / 1e3
    assert max(bandwidth / measured, measured / bandwidth) < STATED_ERROR


def test_few_blocks_are_bound_by_latency_and_many_by_memory() -> None:
    few, many = rows(32, 1 << 20), rows(1 << 15, 1 << 10)  # the same bytes
    assert (few.bound, many.bound) == ("latency", "memory")
    assert few.time_us > 4 * many.time_us
    assert few.busy == pytest.approx(32 / 132)
    assert few.waves < 1 < many.waves
    assert bound_in_words(few, H100) == "latency: 24% of 132 SMs have a block"
    assert bound_in_words(many, H100) == "memory bandwidth"


def test_a_card_with_twice_the_bandwidth_helps_where_memory_binds() -> None:
    launch = launched("sum", 1 << 15, 256, 1 << 10, (4 << 25, 4 << 15))
    faster = replace(H100, bytes_s=2 * (H100.bytes_s or 0))
    assert predicted(launch, faster).time_us < 0.75 * predicted(launch, H100).time_us
    few = launched("sum", 32, 256, 1 << 20, (4 << 25, 128))
    assert predicted(few, faster).time_us == pytest.approx(predicted(few, H100).time_us, rel=0.01)


def test_a_launch_that_was_not_traced_is_left_with_a_reason() -> None:
    launch = replace(
        launched("sum", 32, 256, 64, (1 << 20, 128)), trace=None, untraced="its grid is not known"
    )
    call = predicted_call([launch], [], H100)
    assert call.left == ("sum: its time is not predicted: its grid is not known",)
    with pytest.raises(Unavailable, match="no bandwidth"):
        predicted(launched("sum", 32, 256, 64, (1 << 20, 128)), CARDS["sm_75"])


def test_calls_of_torch_take_their_bytes_or_their_flops() -> None:
    copy = TorchCall("copy_", 2 << 30, 0, "fp32")
    product = TorchCall("mm", 3 << 26, 2 * 4096**3, "fp32")
    assert of_torch(copy, H100) == pytest.approx(2 + (2 << 30) / (0.91 * 3.35e12) * 1e6)
    assert of_torch(product, H100) == pytest.approx(2 + 2 * 4096**3 / (0.8 * 67e12) * 1e6)
    assert of_torch(replace(product, precision="bf16"), H100) < of_torch(product, H100) / 10


def test_all_cards_from_sm_80_have_what_a_prediction_needs() -> None:
    assert {card.chip for card in BY_NAME.values()} >= {
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "sm_100",
        "sm_120",
    }
    for card in BY_NAME.values():
        assert card.bytes_s and card.latencies and card.clock_hz and card.l2_cycle_bytes, card.name
        if fp32 := card.peaks.get("fp32"):  # by the cores and the clock; data sheets round it
            lanes = 64 if card.chip == "sm_80" else 128
            assert 2 * lanes * card.multiprocessors * card.clock_hz == pytest.approx(fp32, rel=0.03), (
                card.name
            )
