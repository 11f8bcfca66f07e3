"""What needs a GPU: real counters and real traces of a Triton kernel, held against what it does."""

import shutil
from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.evaluator import Effort, Measurement, Protocol, Referee
from kernelwright.kernelbench.records import TRAFFIC, Candidate, Task, Verdict
from kernelwright.profiling.gpu.nsight import NsightCompute
from kernelwright.profiling.gpu.tracing import Trace
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Reading, Subject

pytestmark = [pytest.mark.gpu, pytest.mark.acceptance]

SIZE = 1 << 24
REFERENCE = f"""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.exp(2 * x), dim=-1)

def get_inputs():
    return [torch.randn({SIZE >> 12}, 4096)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def exponentials(x, y, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.exp(2 * tl.load(x + at)))

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        exponentials[(x.numel() // 1024,)](x, y, block=1024, num_warps=4)
        return torch.softmax(y, dim=-1)
"""


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    effort = Effort(rounds=3, processes=1, most_processes=1, half_width=1.0)
    protocol = Protocol(effort=effort, min_rounds=3)
    task = Task(id="file:exp", level=1, source=REFERENCE)
    candidate = Candidate(source=CANDIDATE, language="triton", author="test")
    cache = tmp_path_factory.mktemp("cache")
    with Referee.start(cache=cache, protocol=protocol, device="cuda:0") as evaluator:
        evaluation = evaluator.evaluate(task, candidate, Measurement(("eager", TRAFFIC)))
        assert evaluation.verdict is Verdict.correct, evaluation.reason
        yield Subject(evaluator, task, candidate, evaluation)


def profile_of(reading: Reading) -> Profile:
    return Profile(metrics=reading.metrics, bottleneck="unknown", speed_of_light=None)


def test_a_trace_tells_own_kernels_from_torch_s(subject: Subject) -> None:
    found = profile_of(Trace().read(subject))
    assert found.value("launches") == 2 and found.value("own_launches") == 1
    assert found.value("grid_blocks", "exponentials") == SIZE // 1024
    assert found.value("block_threads", "exponentials") == 128
    share = found.value("own_share")
    assert share is not None and 0.1 < share < 0.9
    timing = subject.evaluation.timing
    busy = found.value("gpu_time")
    assert timing is not None and busy is not None and 0 < busy < 1.5 * timing.candidate_us.median


@pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not installed")
def test_counters_are_what_the_kernel_does(subject: Subject) -> None:
    found = profile_of(NsightCompute().read(subject))
    assert found.kernels == ("exponentials",)
    for name in ("dram_read", "dram_written"):
        moved = found.value(name, "exponentials")
        assert moved is not None and moved < 1.2 * 4 * SIZE  # less where the cache keeps some
    read = found.value("dram_read", "exponentials")
    assert read is not None and read > 0.9 * 4 * SIZE  # caches are cold
    assert found.value("profiled_launches", "exponentials") == 1
    assert found.value("load_use", "exponentials") == pytest.approx(1.0, abs=0.01)
    occupancy = found.value("achieved_occupancy", "exponentials")
    assert occupancy is not None and 0.2 < occupancy <= 1.0
