"""Triton candidates, built for chips that are not here: what their kernels take and consist of."""

import io
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright import cli
from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.notes import Launched
from kernelwright.kernelbench.chips.sass import SassMix
from kernelwright.kernelbench.errors import Unavailable, UsageError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from kernelwright.profiling.cli import check_chip
from kernelwright.profiling.ladder import profile
from kernelwright.profiling.page import show
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject
from kernelwright.profiling.static.cubins import Cubins
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.builds

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 128))

    def forward(self, x):
        return torch.relu(x @ self.weight).sum(1)

def get_inputs():
    return [torch.randn(512, 256)]

def get_init_inputs():
    return []
"""

HEAD = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def product(x, w, y, rows, inner, columns, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, inner, K):
        at = start + tl.arange(0, K)
        total = tl.dot(tl.load(x + row[:, None] * inner + at), tl.load(w + at[:, None] * columns + column), total)
    tl.store(y + row[:, None] * columns + column, tl.maximum(total, 0.0))

@triton.jit
def sums(y, out, columns: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(y + row * columns + tl.arange(0, columns))))
"""

MODEL = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 128))

    def forward(self, x):
        y, out = x.new_empty(512, 128), x.new_empty(512)
        BODY
        return out
"""
PRODUCT = "product[(512 // 64, 2)](x, self.weight, y, 512, 256, 128, M=64, N=64, K=32)"
SUMS = "sums[(512,)](y, out, 128, num_warps=1)"


def candidate(*body: str, head: str = HEAD) -> Candidate:
    text = head + MODEL.replace("BODY", "\n        ".join(body))
    return Candidate(source=text, language="triton", author="test")


@pytest.fixture(scope="module")
def evaluator(home: Path) -> Iterator[Referee]:
    with Referee.start(cache=home) as made:
        made.sessions.pool.import_first(["triton.language"])  # as torch.compile does: to be interpreted
        yield made


def subject(evaluator: Referee, given: Candidate, chip: str) -> Subject:
    task = Task(id="file:test", level=1, source=REFERENCE)
    return Subject(
        evaluator, task, given, evaluator.untried(task, given, Verdict.unmeasured, "built alone"), chip
    )


def read(evaluator: Referee, given: Candidate, chip: str = "sm_90") -> Profile:
    return profile(subject(evaluator, given, chip), [Cubins()])


def why(found: Profile) -> str:
    return next(rung.why for rung in found.rungs if rung.name == "cubins")


def test_what_kernels_take_and_consist_of(evaluator: Referee) -> None:
    found = read(evaluator, candidate(PRODUCT, SUMS, SUMS), "sm_90")
    assert found.kernels == ("product", "sums")
    assert [found.value("built_launches", kernel) for kernel in found.kernels] == [1, 2]
    assert [found.value("blocks", kernel) for kernel in found.kernels] == [16, 512]
    assert [found.value("threads", kernel) for kernel in found.kernels] == [128, 32]
    assert found.value("group_products", "product") == found.value("tensor_products", "product") > 0  # type: ignore[operator]
    assert found.value("warp_products", "product") is None  # HGMMA alone
    assert (found.value("inner_loops", "product"), found.value("inner_loops", "sums")) == (1, 0)
    assert found.value("accesses", "product") > found.value("copies", "product") > 0  # type: ignore[operator]
    assert found.value("shared_bytes", "product") >= 3 * 2 * 64 * 32 * 4 / 3  # type: ignore[operator]
    assert (found.value("tensor_products", "sums"), found.value("access_bits", "sums")) == (
        0,
        80,
    )  # 128, 32
    limits = [
        found.value(f"warps_by_{name}", "product") for name in ("registers", "shared_memory", "threads")
    ]
    assert found.value("occupancy", "product") == min(limits) / 64  # type: ignore[type-var, operator]
    assert (found.speed_of_light, found.bottleneck) == (None, "unknown")


@pytest.mark.parametrize(
    "again", ["kept[512, 1, 1](y, out, 128)", "kept.run(512, 1, 1, 0, kept.function, None, None, None, None)"]
)
def test_what_a_launch_returns_is_launched_again(evaluator: Referee, again: str) -> None:
    found = read(evaluator, candidate(f"kept = {SUMS}", again), "sm_90")
    assert found.kernels == ("sums",), why(found)
    assert (found.value("built_launches", "sums"), found.value("blocks", "sums")) == (2, 512)


def test_the_same_kernels_for_another_chip(evaluator: Referee) -> None:
    found = read(evaluator, candidate(PRODUCT), "sm_80")
    assert found.value("warp_products", "product") == found.value("tensor_products", "product") > 0  # type: ignore[operator]
    assert found.value("group_products", "product") is None  # there is none before sm_90


TUNED = HEAD.replace(
    "@triton.jit\ndef sums",
    """@triton.autotune([triton.Config({}, num_warps=8), triton.Config({}, num_warps=2)], key=["rows"])
@triton.heuristics({"columns": lambda given: 64})
@triton.jit
def sums""",
).replace("columns: tl.constexpr):", "rows, columns: tl.constexpr):")


def test_of_an_autotuned_kernel_the_first_configuration_is_built(evaluator: Referee) -> None:
    found = read(evaluator, candidate("sums[lambda given: (given['columns'],)](y, out, 512)", head=TUNED))
    assert found.value("configurations", "sums") == 2
    assert found.value("threads", "sums") == 8 * 32
    assert found.value("blocks", "sums") == 64  # what the heuristic gave


def test_what_a_kernel_is_built_for_follows_from_its_arguments(evaluator: Referee) -> None:
    odd = "sums[(511,)](y.view(-1)[1:], out, 128, num_warps=1)"
    found = read(evaluator, candidate(SUMS, odd))
    assert found.kernels == ("sums", "sums.2")
    assert [found.value("access_bits", kernel) for kernel in found.kernels] == [80, 32]  # 4 bytes off a line


def test_code_that_asks_whether_it_is_on_a_gpu(evaluator: Referee) -> None:
    asked = (
        "assert x.is_cuda and x.device.type == 'cuda' and torch.cuda.is_available()",
        "out = torch.empty(512, device=x.device) + torch.zeros(512, device='cuda') + out.cuda()",
        "order = torch.empty_like(out, dtype=torch.int64)",
        "with torch.cuda.device(x.device):",
        f"    {SUMS}",
        "return out[order]",
    )
    found = read(evaluator, candidate(*asked))
    assert found.kernels == ("sums",) and "; nothing was run; predicted for NVIDIA H100" in why(found)


def test_what_registers_do_not_hold_is_spilled(evaluator: Referee) -> None:
    found = read(evaluator, candidate(PRODUCT.replace("K=32", "K=32, maxnreg=32")), "sm_80")
    assert found.value("built_registers", "product") <= 32  # type: ignore[operator]
    assert found.value("local_accesses", "product") > 0 < found.value("stack_bytes", "product")  # type: ignore[operator]


def test_kernels_before_a_failure_are_read(evaluator: Referee) -> None:
    found = read(evaluator, candidate(SUMS, "assert not x.is_cuda", PRODUCT))
    assert found.kernels == ("sums",)
    assert "its call failed: AssertionError" in why(found)


def test_a_kernel_that_cannot_be_built_is_passed_over(evaluator: Referee) -> None:
    broken = "product[(1,)](x, self.weight, y, 512, 256, 128, M=48, N=64, K=32)"
    found = read(evaluator, candidate(broken, SUMS))
    assert found.kernels == ("sums",)
    assert "product cannot be built: " in why(found) and "power of 2" in why(found)


def test_a_block_that_fits_nowhere_has_no_occupancy(evaluator: Referee) -> None:
    wide = "product[(4, 1)](x, self.weight, y, 512, 256, 128, M=64, N=64, K=128)"
    found = read(evaluator, candidate(wide), "sm_86")  # 100 KiB of shared memory
    assert found.value("occupancy", "product") == found.value("warps_by_shared_memory", "product") == 0
    page = shown(evaluator, found)
    assert re.search(r"occupancy +0% +higher", page) and re.search(r"limited by +shared memory", page)


CUPY = """
import cupy as cp
import torch
from torch import nn

CODE = r'''
extern "C" __global__ void scale(const float4* x, float4* y, float factor) {
    extern __shared__ float kept[];
    __shared__ float own[64];
    float4 value = x[blockIdx.x * blockDim.x + threadIdx.x];
    kept[threadIdx.x] = own[threadIdx.x % 64] = value.x;
    __syncthreads();
    value.x = factor * kept[blockDim.x - 1 - threadIdx.x] + own[63 - threadIdx.x % 64];
    y[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
'''
module = cp.RawModule(code=CODE, options=("--use_fast_math",))
broken = cp.RawKernel('extern "C" __global__ void broken() { x = 1; }', "broken")
"""
SCALE = "module.get_function('scale')((64, 2), (64, 2), (x.data_ptr(), y.data_ptr(), cp.float32(2)), shared_mem=512)"
STREAM = "with cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):"


def test_kernels_that_cupy_launches(evaluator: Referee) -> None:
    try:
        nvrtc.version()
    except Unavailable as error:
        pytest.skip(str(error))
    found = read(
        evaluator, candidate("broken((1,), (1,), ())", STREAM, f"    {SCALE}", SCALE, head=CUPY), "sm_80"
    )
    assert found.kernels == ("scale",)
    assert (found.value("built_launches", "scale"), found.value("blocks", "scale")) == (2, 128)
    assert (found.value("threads", "scale"), found.value("shared_bytes", "scale")) == (128, 512 + 256)
    assert (found.value("access_bits", "scale"), found.value("barriers", "scale")) == (128, 1)
    assert "built for sm_80 by NVRTC" in why(found) and 'identifier "x" is undefined' in why(found)


CUDA = """
import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cuda(r'''
extern "C" __global__ void rows(const float* x, float* out, int columns) {
    __shared__ float kept[64];
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 64) sum += x[blockIdx.x * columns + i];
    kept[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) for (int i = 1; i < 64; ++i) sum += kept[i];
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
''')
"""


@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100"])
def test_cuda_kernels_of_compile_cuda(chip: str, evaluator: Referee) -> None:
    try:
        nvrtc.version()
    except Unavailable as error:
        pytest.skip(str(error))
    body = "lib.get_function('rows')((512,), (64,), (x, out, 256))"
    found = read(evaluator, candidate(body, head=CUDA), chip)
    assert found.kernels == ("rows",) and f"built for {chip} by NVRTC" in why(found)
    assert (found.value("blocks", "rows"), found.value("threads", "rows")) == (512, 64)
    assert found.value("shared_bytes", "rows") == 64 * 4 and found.value("inner_loops", "rows") == 2
    assert found.value("warps_by_threads", "rows") == 64  # 32 blocks of two
    assert 0 < (found.value("built_registers", "rows") or 0) < 64 and found.value("stall_cycles", "rows")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "out = x.sum(1)",
            "it launches no kernel of Triton, Gluon, CuTe DSL, TileLang, CuPy or compile_cuda",
        ),
        ("raise SystemExit('enough')", "its call failed: SystemExit: enough"),
        ("import os; os._exit(3)", "building its kernels failed: exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "building its kernels failed: killed by SIGKILL"),
    ],
)
def test_a_candidate_without_kernels_says_why(evaluator: Referee, body: str, said: str) -> None:
    found = read(evaluator, candidate(body))
    assert not found.kernels and said in why(found)


def test_what_cannot_be_loaded_says_why(evaluator: Referee) -> None:
    found = read(evaluator, candidate(SUMS, head=HEAD + "\nimport no_such_module\n"))
    assert "it cannot be loaded: ModuleNotFoundError" in why(found)


def test_without_a_chip_nothing_is_built(evaluator: Referee) -> None:
    with pytest.raises(Unavailable, match="--target sm_90"):
        Cubins().read(subject(evaluator, candidate(SUMS), ""))


MIX = SassMix(**dict.fromkeys((field.name for field in fields(SassMix)), 0))
KERNEL = Launched("Triton", "f", 1, (1, 1, 1), 32, 0, 32, 0, 0, 0, MIX, MIX)


@pytest.mark.parametrize(
    "kernels",
    [
        None,
        [{"name": "f"}],
        [asdict(KERNEL) | {"builder": "by hand"}],
        [asdict(replace(KERNEL, registers=-1))],
        [asdict(replace(KERNEL, threads=2048))],
        [asdict(replace(KERNEL, launches=10**400))],
        [asdict(replace(KERNEL, mix=replace(MIX, loads=10**400)))],
        [asdict(replace(KERNEL, mix=replace(MIX, access_bits=float("nan"))))],
    ],
)
def test_what_a_worker_answers_is_looked_at(
    evaluator: Referee, kernels: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, {"kernels": kernels, "problems": []})
    assert "none of what there is to read" in why(read(evaluator, candidate(SUMS)))


def test_names_and_problems_hold_nothing_odd(evaluator: Referee, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = asdict(replace(KERNEL, name="[red]\x1b[2J" + 100 * "x"))
    answers(monkeypatch, {"kernels": [odd] * 100, "problems": ["\x1b[2J" + 1000 * "y"] * 100})
    found = read(evaluator, candidate(SUMS))
    assert found.kernels[:2] == ("?red???2J" + 71 * "x", "?red???2J" + 69 * "x" + ".2")
    assert len(found.kernels) == 64 and {len(name) for name in found.kernels} == {80}
    assert "\x1b" not in why(found) and len(why(found)) < 3000


def answers(monkeypatch: pytest.MonkeyPatch, answer: dict[str, object]) -> None:
    ask = Worker.ask
    given = lambda *a: answer if a[1]["do"] == "read" else ask(*a)  # noqa: E731
    monkeypatch.setattr(Worker, "ask", given)


def shown(evaluator: Referee, found: Profile) -> str:
    out = Console(record=True, width=150, highlight=False, file=io.StringIO())
    show(out, subject(evaluator, candidate(SUMS), "sm_90").evaluation, found)
    return out.export_text()


@pytest.mark.parametrize("name", ["sm_90", "cuda:sm_90"])
def test_a_chip_is_named(name: str) -> None:
    assert check_chip(name) == "sm_90"


def test_chips_that_are_none() -> None:
    assert check_chip("cpu") == check_chip("cuda:0") == ""
    with pytest.raises(UsageError, match=r"sm_61.*sm_80, sm_86"):
        check_chip("sm_61")


EXAMPLE = Path("results") / "published" / "static" / "matmul_scale_residual.py"


@pytest.mark.slow
def test_the_page_of_a_chip(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "120")
    words = ["builtin:level2/matmul_scale_residual", str(EXAMPLE), "--target", "cuda:sm_90"]
    monkeypatch.setattr("sys.argv", ["kernelwright", "profile", *words, "--precision", "fp16"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    page = capsys.readouterr().out
    assert re.search(r"unmeasured: built for sm_90, neither timed nor checked", page)
    assert re.search(r"group_products +[1-9]\d* +higher +products by four warps: HGMMA, QGMMA, IGMMA", page)
    assert re.search(r"limited by +(registers|shared memory)", page)
    assert re.search(r"local_accesses +0 +lower +loads and stores of local memory: spills", page)
    assert re.search(r"roofline: off, the candidate was not timed", page)
