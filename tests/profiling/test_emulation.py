"""Uncoalesced accesses and bank conflicts of CUDA C++ kernels: transposes, in emulation."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator import Protocol, Referee
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from kernelwright.kernelbench.sources.smaller import smaller
from kernelwright.kernelbench.without_gpu import start_evaluator
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.emulated import emulation
from kernelwright.profiling.emulated.emulation import Emulation
from kernelwright.profiling.ladder import profile
from kernelwright.profiling.page import show
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject

REFERENCE = """
import torch
from torch import nn

rows = 64
columns = 64

class Model(nn.Module):
    def forward(self, x):
        return x.T.contiguous()

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""
TASK = Task(id="file:transpose", level=1, source=REFERENCE)
HEAD = """
import torch
from torch import nn
from kernelwright import jit
"""
MODEL = """
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[1], x.shape[0], device=x.device)
        module.turn((x.shape[1] // 32, x.shape[0] // 32), (32, 32), (x, y, x.shape[0], x.shape[1]))
        return y
"""
NAIVE = (
    HEAD
    + """
module = jit.compile_cuda(r'''
extern "C" __global__ void turn(const float* x, float* y, int rows, int columns) {
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    y[c * rows + r] = x[r * columns + c];
}
''')
"""
    + MODEL
)
TILED = (
    HEAD
    + """
module = jit.compile_cuda(r'''
extern "C" __global__ void turn(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][32];
    const int c = blockIdx.x * 32, r = blockIdx.y * 32;
    tile[threadIdx.y][threadIdx.x] = x[(r + threadIdx.y) * columns + c + threadIdx.x];
    __syncthreads();
    y[(c + threadIdx.y) * rows + r + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
''')
"""
    + MODEL
)
PADDED = TILED.replace("tile[32][32]", "tile[32][33]")


@pytest.fixture(scope="module")
def evaluator(home: Path) -> Iterator[Referee]:
    with Referee.start(cache=home) as made:
        yield made


def read(evaluator: Referee, source: str) -> Profile:
    candidate = Candidate(source=source, language=language_of(source), author="test")
    evaluation = evaluator.untried(TASK, candidate, Verdict.unmeasured, "read alone")
    return profile(Subject(evaluator, TASK, candidate, evaluation, "sm_90"), [Emulation()])


def why(found: Profile) -> str:
    return next(rung.why for rung in found.rungs if rung.name == "emulation")


@pytest.mark.slow
def test_a_naive_transpose_stores_a_sector_for_each_thread(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "smaller", lambda task: smaller(task, 1 << 11))
    found = read(evaluator, NAIVE)
    assert why(found) == "one call in emulation at rows=32, four blocks of each launch"
    assert found.value("emulated_load_sectors", "turn") == 4
    assert found.value("emulated_store_sectors", "turn") == 32
    assert found.value("emulated_sector_use", "turn") == pytest.approx(8 / 36)
    assert found.value("emulated_bank_passes", "turn") is None
    [remark] = found.remarks
    assert (remark.line, remark.code) == (4, "y[c * rows + r] = x[r * columns + c];")
    assert remark.text == "a store takes 32 sectors, 4 would suffice"
    [finding] = found.findings
    assert (finding.kind, finding.most_gain) == ("memory", pytest.approx(36 / 8))
    assert finding.says == (
        "Uncoalesced access: only 22% of the global-memory sectors that turn's warps request are needed: "
        "line 4, a store takes 32 sectors, 4 would suffice."
    )
    assert set(finding.cites) == {"emulated_sector_use", "emulated_load_sectors", "emulated_store_sectors"}
    assert {m.provenance for m in found.metrics} == {"emulated"}
    assert Profile.model_validate_json(found.model_dump_json()) == found


def test_a_tile_without_padding_has_its_columns_in_one_bank(evaluator: Referee) -> None:
    found = read(evaluator, TILED)
    assert why(found) == "one call in emulation at the task's own sizes, four blocks of each launch"
    assert found.value("emulated_store_sectors", "turn") == 4
    assert found.value("emulated_sector_use", "turn") == 1
    assert found.value("emulated_bank_passes", "turn") == pytest.approx((1 + 32) / 2)
    [remark] = found.remarks
    assert (remark.line, remark.text) == (7, "a load takes 32 passes over the banks, 1 would suffice")
    [finding] = found.findings
    assert finding.says.startswith(
        "Bank conflicts: turn's warps make 16.5 times the passes over shared memory"
    )
    assert "line 7" in finding.says and "[32][33]" in finding.fix
    out = io.StringIO()
    show(Console(file=out, width=140), read_evaluation(evaluator), found)
    shown = out.getvalue()
    assert "1. Bank conflicts" in shown and "(at most 16.50 times as fast)" in shown
    assert "emulated, not measured" in shown and "wasteful accesses in" in shown
    assert "y[(c + threadIdx.y) * rows" in shown


def read_evaluation(evaluator: Referee):  # type: ignore[no-untyped-def]
    candidate = Candidate(source=TILED, language="cuda", author="test")
    return evaluator.untried(TASK, candidate, Verdict.unmeasured, "read alone")


def test_of_a_padded_tile_nothing_is_said(evaluator: Referee) -> None:
    found = read(evaluator, PADDED)
    assert found.value("emulated_bank_passes", "turn") == 1
    assert (found.findings, found.remarks) == ((), ())


REASONS = {
    "a race": (TILED.replace("__syncthreads();", ""), "its kernels are faulty (see `evaluate`): "),
    "inline PTX": (
        NAIVE.replace("const int c", 'asm volatile(""); const int c'),
        "inline PTX cannot be emulated",
    ),
    "no launch": (
        NAIVE.replace("module.turn((", "print((").replace("return y", "return y.copy_(x.T)"),
        "launches no kernel",
    ),
    "Triton": ("import triton\n@triton.jit\ndef kernel(x): pass\n" + NAIVE, "language is triton"),
    "C++": (
        NAIVE.replace("compile_cuda", "compile_cpp").replace("__global__", ""),
        "the candidate's language is cpp",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_cannot_be_read_has_a_reason(evaluator: Referee, case: str) -> None:
    source, words = REASONS[case]
    found = read(evaluator, source)
    assert words in why(found) and not found.metrics


@pytest.mark.slow
def test_on_a_gpu_it_leaves_the_counting_to_the_gpu_but_where_candidates_are_emulated_first(
    evaluator: Referee,
) -> None:
    candidate = Candidate(source=NAIVE, language="cuda", author="test")
    evaluation = evaluator.untried(TASK, candidate, Verdict.unmeasured, "")
    target = evaluation.target.model_copy(update={"device": "cuda:0"})
    on_gpu = Subject(evaluator, TASK, candidate, evaluation.model_copy(update={"target": target}))
    assert "ncu counts these on a GPU" in why(profile(on_gpu, [Emulation()]))
    protocol = Protocol(check_first=True)
    with start_evaluator(cache=evaluator.sessions.pool.cache, protocol=protocol) as checking_first:
        reading = Emulation().read(replace(on_gpu, evaluator=checking_first))
    assert metric("emulated_store_sectors", 32, "turn") in reading.metrics
