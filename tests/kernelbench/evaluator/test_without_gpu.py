"""CUDA C++ candidates where there is no GPU: what is said of them, and at which sizes they are tried."""

from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import EAGER, LocalEvaluator, Protocol, Referee
from kernelwright.kernelbench.records import Build, Candidate, Evaluation, Task, Verdict
from kernelwright.kernelbench.sources.smaller import changed, share, smaller
from kernelwright.kernelbench.terminal import show
from kernelwright.kernelbench.without_gpu import CheckedFirst, EmulatedEvaluator, start_evaluator
from kernelwright.kernelbench.without_gpu import evaluator as without_gpu
from tests.helpers.evaluator.trial import candidate_of, task_of

pytestmark = pytest.mark.builds

REFERENCE = """
import torch
from torch import nn

rows = 16
columns = 2048

class Model(nn.Module):
    def forward(self, x):
        return x.sum(1)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""

CANDIDATE = """
import torch
from torch import nn
from kernelwright import jit

module = jit.compile_cuda(r'''
extern "C" __global__ void __launch_bounds__(128) sum_rows(const float* x, float* y, int n) {
    __shared__ float part[128];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[blockIdx.x * (long long)n + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int by = 64; by; by /= 2) {
        if (threadIdx.x < by) part[threadIdx.x] += part[threadIdx.x + by];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
''')

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        module.sum_rows((x.shape[0],), (128,), (x, y, x.shape[1]))
        return y
"""
INLINE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

extension = load_inline("sums", "torch::Tensor sums(torch::Tensor x);", r'''
#include <torch/extension.h>
#include <cuda_runtime.h>
constexpr int LANES = 32;
template <typename T, int N>
__global__ void sum_rows(const T* x, T* y, int n) {
    T sum = 0;
    for (int i = threadIdx.x; i < n; i += N) sum += x[blockIdx.x * (long long)n + i];
    for (int by = N / 2; by; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
torch::Tensor sums(torch::Tensor x) {
    auto y = torch::empty({x.size(0)}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "sums", [&] {
        sum_rows<scalar_t, LANES><<<x.size(0), LANES>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.size(1));
    });
    return y;
}
''', functions=["sums"])

class ModelNew(nn.Module):
    def forward(self, x):
        return extension.sums(x.contiguous())
"""
LOOP_END = "        __syncthreads();\n    }\n"


@pytest.fixture
def check(evaluator: Referee, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(without_gpu, "smaller", lambda task, *_: smaller(task, 1 << 14))

    def call(source: str, chips: tuple[str, ...] = ()) -> Evaluation:
        return EmulatedEvaluator(evaluator, chips).evaluate(task_of(REFERENCE), candidate_of(source))

    return call


def test_a_candidate_is_tried_at_several_sizes_and_its_own(check, capsys) -> None:  # type: ignore[no-untyped-def]
    found = check(CANDIDATE)
    assert found.verdict is Verdict.unmeasured, found.reason
    assert found.reason.startswith(
        "right in emulation; there is no GPU to time it on. Checked at columns=1024"
    )
    assert found.reason.endswith("the task's own sizes")
    assert found.correctness is not None and found.correctness.inputs_tried > 20 and found.speedup is None
    problem = {"ok": None, "problem": "there is no NVRTC"}
    show(
        found.model_copy(update={"builds": tuple(Build(chip=chip, **problem) for chip in ("sm_80", "sm_90"))})
    )
    shown = capsys.readouterr().out
    assert f"numerics       {found.correctness.inputs_tried} inputs, error at most 0." in shown
    assert "  sm_80, sm_90 unknown: there is no NVRTC\n" in shown  # said once


@pytest.mark.slow
def test_it_is_built_for_chips_that_are_not_here(check) -> None:  # type: ignore[no-untyped-def]
    try:
        nvrtc.version()
    except Unavailable as error:
        pytest.skip(str(error))
    tested = f"{CANDIDATE}\n\nModelNew()(torch.ones(3, 70))  # no launch of a call\n"
    found = check(tested, ("sm_80", "sm_90"))
    assert [build.chip for build in found.builds] == ["sm_80", "sm_90"]
    for build in found.builds:
        [kernel] = build.kernels
        assert build.ok and (kernel.name, kernel.threads, kernel.shared_bytes) == ("sum_rows", 128, 512)
        assert kernel.launches == 1
        assert kernel.registers > 8 and kernel.spills == 0 and kernel.occupancy == 1.0
    assert Evaluation.model_validate_json(found.model_dump_json()) == found
    # g++ takes it, NVRTC does not.
    lax = CANDIDATE.replace("float sum = 0;", "float sum = 0; __builtin_prefetch(x);")
    found = check(lax, ("sm_90",))
    assert found.verdict is Verdict.build_error and "for sm_90" in found.reason


def test_a_missing_barrier_is_said_with_its_line(check) -> None:  # type: ignore[no-untyped-def]
    found = check(CANDIDATE.replace(LOOP_END, "    }\n"))
    assert found.verdict is Verdict.runtime_error
    assert "Race in __shared__ memory" in found.reason
    assert "kernel.cu:9 `if (threadIdx.x < by) part[threadIdx.x] += part[threadIdx.x + by];`" in found.reason


def test_what_is_made_for_one_size_is_right_there_and_not_elsewhere(check) -> None:  # type: ignore[no-untyped-def]
    found = check(CANDIDATE.replace("(x, y, x.shape[1])", "(x, y, 2048)"))
    assert found.verdict is Verdict.unmeasured and found.correctness is not None
    assert "At columns=1024 it is not: KernelFault: sum_rows: Invalid __global__ read" in found.reason


@pytest.mark.slow
def test_wrong_at_smaller_sizes_is_said_so_where_its_own_are_too_large_to_run_here(  # type: ignore[no-untyped-def]
    check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(without_gpu, "_MOST_BYTES", 1 << 16)
    found = check(CANDIDATE.replace("(x, y, x.shape[1])", "(x, y, 2048)"))
    assert found.verdict is Verdict.runtime_error
    assert found.reason.startswith(
        "at smaller sizes, columns=1024: KernelFault: sum_rows: Invalid __global__"
    )
    assert found.reason.endswith("The task's own sizes take 0.0 GiB a call, too much to check here")
    unbuilt = check(CANDIDATE.replace("float sum = 0;", "float sum = 0"))
    assert unbuilt.verdict is Verdict.build_error and unbuilt.reason.startswith("BuildError: ")


@pytest.mark.slow
def test_a_reference_that_fails_at_its_own_sizes_does_not_hide_what_smaller_ones_say(  # type: ignore[no-untyped-def]
    check, evaluator: Referee
) -> None:
    too_large = REFERENCE.replace("return x.sum(1)", "return x.sum(1) if x.shape[1] < 2000 else x @ x")
    off_by_one = CANDIDATE.replace("i = threadIdx.x; i < n", "i = threadIdx.x; i < n - 1")
    emulated = EmulatedEvaluator(evaluator, ("sm_90",))  # for which it is built at smaller sizes, too
    assert emulated.evaluate(task_of(too_large), candidate_of(CANDIDATE)).right
    found = emulated.evaluate(task_of(too_large), candidate_of(off_by_one))
    assert found.verdict is Verdict.wrong_output and found.reason.startswith(
        "at smaller sizes, columns=1024: "
    )
    on_cpu = (
        "import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        "
    )
    right, wrong = (candidate_of(f"{on_cpu}return {what}\n") for what in ("x.sum(1)", "x.mean(1)"))
    assert emulated.checked_on_cpu(task_of(too_large), right).right
    assert emulated.checked_on_cpu(task_of(too_large), wrong).reason.startswith(
        "at smaller sizes, columns=1024: "
    )


def test_what_cannot_be_emulated_is_not_called_wrong(check) -> None:  # type: ignore[no-untyped-def]
    found = check(CANDIDATE.replace("float sum = 0;", 'float sum = 0; asm volatile("");'))
    assert (found.verdict, found.correctness) == (Verdict.unmeasured, None)
    assert "not checked: Unsupported: line 4: inline PTX cannot be emulated" in found.reason


def test_a_wrong_answer_is_wrong(check) -> None:  # type: ignore[no-untyped-def]
    found = check(CANDIDATE.replace("i = threadIdx.x; i < n", "i = threadIdx.x; i < n - 1"))
    assert found.verdict is Verdict.wrong_output


def test_a_candidate_without_a_gpu_kernel_is_turned_away(check) -> None:  # type: ignore[no-untyped-def]
    plain = (
        CANDIDATE.partition("from kernelwright import jit")[0]
        + """
class ModelNew(nn.Module):
    def forward(self, x):
        return x.sum(1)
"""
    )
    assert language_of(plain) == "torch"
    assert check(plain).verdict is Verdict.build_error


def test_smaller_sizes_are_even_odd_and_long() -> None:
    task = task_of(REFERENCE)
    tried = [[changed(task, other) for other in others] for others in smaller(task, 1 << 14)]
    assert tried == [
        ["columns=1024", "rows=8, columns=1024"],
        ["columns=1023", "rows=7, columns=1024"],
        ["rows=7", "rows=8"],
    ]
    [[even, _], *_] = smaller(task, 1 << 14)
    assert share(task, even) == 2
    assert list(smaller(even, 1 << 14)) == []


def test_a_size_may_be_written_as_a_product() -> None:
    """As KernelBench has `N = 2048 * 2`. What is made from another constant follows that one."""
    written = REFERENCE.replace("columns = 2048", "columns = 1024 * 2\nhalf = columns // 2")
    assert written != REFERENCE
    [[even, _], *_] = smaller(task_of(written), 1 << 14)
    assert changed(task_of(written), even) == "columns=1024"


def test_the_sizes_in_a_tuple_count() -> None:
    """KernelBench 1/98 has `input_shape = (8192 * 2,)`, and 1/65 `kernel_size = (3, 7)`."""
    written = REFERENCE.replace("columns = 2048", "shape = (1024 * 2,)\nkernel = (3, 1)")
    tried = [[changed(task_of(written), other) for other in others] for others in smaller(task_of(written))]
    assert tried == []  # 16 * 2048 * 3 is small
    tried = [
        [changed(task_of(written), other) for other in others]
        for others in smaller(task_of(written), 1 << 14)
    ]
    assert tried[0] == ["shape=(256,)", "rows=4, shape=(512,)"] and tried[1][0] == "shape=(255,)"


def test_ratios_of_sizes_are_kept_where_a_reference_relies_on_them() -> None:
    """KernelBench 2/34 normalizes the 2 * W columns of its images by its channels."""
    sizes = "batch = 32\nchannels = 64\nD, H, W = 16, 32, 32\nkernel = 4\ncolumns = 2 * W"
    task = task_of(REFERENCE.replace("rows = 16\ncolumns = 2048", sizes))
    [[even, alike], [*_, odd], *_] = smaller(task)
    assert changed(task, even) == "batch=8, channels=8, D=8, H=8, W=16"
    assert changed(task, alike) == "batch=8, channels=16, D=4, H=8, W=8"
    assert changed(task, odd) == "batch=7, channels=16, D=4, H=8, W=8"


def test_small_sizes_whose_product_is_large_are_left() -> None:
    names = "".join(f"n{number} = 9\n" for number in range(6))
    assert list(smaller(task_of(REFERENCE.replace("rows = 16\ncolumns = 2048\n", names)))) == []


# Before a GPU runs it.

RACE = CANDIDATE.replace(LOOP_END, "    }\n")
FOR_ONE_SIZE = CANDIDATE.replace("(x, y, x.shape[1])", "(x, y, 2048)")
PTX = CANDIDATE.replace("float sum = 0;", 'float sum = 0; asm volatile("");')
UNKNOWN_TO_THE_EMULATOR = CANDIDATE.replace("float sum = 0;", "float sum = __no_such_intrinsic();")
ON_A_GPU_ONLY = CANDIDATE.replace("y = torch.empty", "assert x.is_cuda\n        y = torch.empty")
WRONG = CANDIDATE.replace("i = threadIdx.x; i < n", "i = threadIdx.x; i < n - 1")
SEES_NO_GPU = CANDIDATE.replace(
    "module = jit",
    "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] == '', 'a GPU'\n"
    "import kernelwright.kernelbench.emulate.extension  # as load_inline does\nmodule = jit",
)


@pytest.fixture
def on_gpu(checking_first: CheckedFirst, monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """The candidates that an evaluator which checks first lets run, on what stands for a GPU."""
    run: list[Candidate] = []

    def evaluate(task: Task, candidate: Candidate, *_: object) -> Evaluation:
        run.append(candidate)
        return checking_first.untried(task, candidate, Verdict.unmeasured, "it has run")

    monkeypatch.setattr(checking_first._evaluator, "evaluate", evaluate)
    monkeypatch.setattr(without_gpu, "smaller", lambda task, *_: list(smaller(task, 1 << 14))[:1])
    return run


@pytest.fixture(scope="module")
def checking_first(evaluator: Referee) -> Iterator[LocalEvaluator]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        made = start_evaluator(cache=evaluator.sessions.pool.cache, protocol=Protocol(check_first=True))
    with made:
        yield made


@pytest.mark.parametrize("source", [RACE, WRONG], ids=["a race", "a wrong answer"])
def test_what_emulation_finds_wrong_takes_no_time_of_a_gpu(
    source: str, checking_first: CheckedFirst, on_gpu: list[Candidate]
) -> None:
    found = checking_first.evaluate(task_of(REFERENCE), candidate_of(source))
    assert not on_gpu
    assert found.reason.startswith("not run on the GPU: in emulation (at columns=1024, too), ")
    wrong = Verdict.runtime_error if source == RACE else Verdict.wrong_output
    assert (found.verdict, found.timing, found.target) == (wrong, None, checking_first.target)


ALLOWED = {
    "right": CANDIDATE,
    "made for the task's own sizes": FOR_ONE_SIZE,
    "not emulated": PTX,
    "not known here": UNKNOWN_TO_THE_EMULATOR,
    "asks for a GPU": ON_A_GPU_ONLY,
    "waits for threads that have returned": CANDIDATE.replace(
        "float sum = 0;", "float sum = 0;\n    if (threadIdx.x == 5) return;"
    ),
    "Triton, too": "import triton\n@triton.jit\ndef kernel(x): pass\n" + RACE,
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_it_finds_nothing_wrong_with_runs(
    case: str, checking_first: CheckedFirst, on_gpu: list[Candidate]
) -> None:
    candidate = candidate_of(ALLOWED[case])
    assert checking_first.evaluate(task_of(REFERENCE), candidate).reason == "it has run"
    assert on_gpu == [candidate]


def test_what_would_take_long_to_emulate_runs(
    checking_first: CheckedFirst, on_gpu: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(without_gpu, "_PATIENCE_S", 0.0)
    assert checking_first.evaluate(task_of(REFERENCE), candidate_of(RACE)).reason == "it has run"


def test_where_kernels_are_emulated_no_gpu_is_seen(checking_first: CheckedFirst) -> None:
    assert checking_first.emulating is not None
    assert (
        checking_first.emulating.pool.timing_lock is checking_first.sessions.pool.timing_lock
    )  # nor is another's timing disturbed
    found = checking_first._on_cpu.evaluate(task_of(REFERENCE), candidate_of(SEES_NO_GPU))
    assert found.verdict is Verdict.unmeasured and found.correctness is not None, found.reason
    sibling = checking_first.sibling()
    assert sibling.emulating is not None and sibling.emulating.pool is checking_first.emulating.pool


@pytest.mark.gpu
@pytest.mark.acceptance
def test_on_a_gpu_what_is_right_is_timed_and_a_race_is_not_run(evaluator: Referee) -> None:
    cache, protocol = (
        evaluator.sessions.pool.cache,
        evaluator.sessions.protocol.model_copy(update={"check_first": True}),
    )
    with start_evaluator(cache=cache, protocol=protocol, devices=("cuda:0",)) as made:
        right = made.evaluate(task_of(REFERENCE), candidate_of(CANDIDATE), EAGER)
        wrong = made.evaluate(task_of(REFERENCE), candidate_of(RACE), EAGER)
    assert right.verdict is Verdict.correct and right.timing is not None, right.reason
    assert wrong.verdict is Verdict.runtime_error and wrong.reason.startswith("not run on the GPU: ")
    assert wrong.target.device == "cuda:0"


@pytest.mark.slow
def test_kernels_of_load_inline_are_emulated_and_built_without_nvcc(evaluator: Referee) -> None:
    reference = REFERENCE.replace("columns = 2048", "columns = 300")
    found = EmulatedEvaluator(evaluator).evaluate(task_of(reference), candidate_of(INLINE))
    assert found.verdict is Verdict.unmeasured, found.reason
    built = [(build.chip, kernel.threads) for build in found.builds for kernel in build.kernels]
    problems = [build.problem for build in found.builds if build.problem]
    assert (
        built == [(chip, 32) for chip in without_gpu.DEFAULT_CHIPS] or "NVRTC is not installed" in problems[0]
    )
