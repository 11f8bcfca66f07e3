"""Right answers of GPU candidates, where there is no GPU: of their kernels, or of what they fall back on."""

from collections.abc import Iterator

import pytest
import torch

from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.evaluator import Protocol, Referee
from kernelwright.kernelbench.evaluator.emulated import Launches, reason, refuse_fallback, refuse_unavailable
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.records import Evaluation, Verdict
from kernelwright.kernelbench.without_gpu import evaluator as without_gpu
from tests.helpers.evaluator.trial import candidate_of, task_of

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

REFERENCE = """
import torch
from torch import nn

rows = 6
columns = 64

class Model(nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""
CUDA = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r'''
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2;
}
template <typename T>
__global__ void shift(torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < y.size(0) * y.size(1)) y[i / y.size(1)][i % y.size(1)] += 0;
}
torch::Tensor scaled(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    auto y = torch::empty_like(x);
    const int n = x.numel(), blocks = (n + 127) / 128;
    auto kernel = scale;
    kernel<<<blocks, 128, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    shift<float><<<blocks, 128>>>(y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
    return y;
}
'''
try:
    extension = load_inline("scaling", "torch::Tensor scaled(torch::Tensor x);", SOURCE, functions=["scaled"])
except Exception:
    extension = None

class ModelNew(nn.Module):
    def forward(self, x):
        if extension is None or not x.is_cuda:
            return x * 2
        return extension.scaled(x)
"""
COMPILED = """
import torch
from torch import nn
from kernelwright import jit

SOURCE = r'''
extern "C" __global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2;
}
extern "C" __global__ void shift(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += 0;
}
'''
try:
    module = jit.compile_cuda(SOURCE)
except Exception:
    module = None

class ModelNew(nn.Module):
    def forward(self, x):
        if module is None or not x.is_cuda:
            return x * 2
        n, y = x.numel(), torch.empty_like(x)
        try:
            module.scale(((n + 127) // 128,), (128,), (x, y, n))
            if n % 2 == 0:
                module.shift(((n + 127) // 128,), (128,), (y, n))
            return y
        except Exception:
            return x * 2
"""
TRITON = """
import torch, triton
from torch import nn
import triton.language as tl

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

class ModelNew(nn.Module):
    def forward(self, x):
        if not x.is_cuda:
            return x * 2
        y = torch.empty(x.shape, device="cuda")
        blocks = min(torch.cuda.get_device_properties(x.device).multi_processor_count, 4)
        scale[(blocks,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(triton.cdiv(x.numel(), blocks)))
        torch.cuda.synchronize()
        return y
"""


@pytest.fixture(scope="module")
def few(evaluator: Referee) -> Iterator[Referee]:
    """The evaluator, with few inputs: it is about launches here."""
    with Referee.start(
        cache=evaluator.sessions.pool.cache, protocol=Protocol(families=without_gpu.FEW)
    ) as made:
        yield made


def tried(few: Referee, source: str, reference: str = REFERENCE) -> Evaluation:
    return few.evaluate(task_of(reference), candidate_of(source))


CUDA_CASES = {
    "all kernels run": (COMPILED, Verdict.unmeasured, "right in emulation; there is no GPU to time it on"),
    "all of load_inline's run": (CUDA, Verdict.unmeasured, "right in emulation; there is no GPU"),
    "the kernel is wrong, the fallback is not": (
        COMPILED.replace("x[i] * 2;", "x[i] * 3;"),
        Verdict.wrong_output,
        "family",
    ),
    "the build fails, the fallback is right": (
        COMPILED.replace("int i =", "int i +="),
        Verdict.build_error,
        "BuildError: ",
    ),
    "that of load_inline fails": (CUDA.replace("int i =", "int i +="), Verdict.build_error, "BuildError: "),
    "that of load_inline fails, and says where": (
        CUDA.replace("auto kernel = scale", "auto kernel = no_such_kernel"),
        Verdict.build_error,
        "BuildError: g++ failed (exit status 1)\nkernel.cu:17:19: error: 'no_such_kernel' was not declared in this scope\n"
        "   17 |     auto kernel = no_such_kernel;",
    ),
    "the kernel writes out of bounds, the fallback is right": (
        COMPILED.replace("if (i < n) y[i] =", "y[i + n] ="),
        Verdict.runtime_error,
        "KernelFault: scale: Invalid __global__ write",
    ),
    "it is not emulated, the fallback is right": (
        COMPILED.replace("int i =", 'asm volatile(""); int i ='),
        Verdict.unmeasured,
        "not checked: no call launched a kernel: Unsupported: line 3: inline PTX cannot be emulated",
    ),
    "one kernel runs": (
        COMPILED.replace("n % 2 == 0", "n % 2 == 7"),
        Verdict.unmeasured,
        "partly checked: shift (line 11) never ran; the answers are right in emulation, and scale ran",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CUDA_CASES)
def test_what_right_answers_say_of_cuda(case: str, few: Referee) -> None:
    source, verdict, begins = CUDA_CASES[case]
    found = tried(few, source)
    assert found.verdict is verdict and found.reason.startswith(begins), found.reason
    assert (found.correctness is not None) == begins.startswith(("right", "partly"))


TRITON_CASES = {
    "the kernel runs": (TRITON, Verdict.unmeasured, "right in Triton's interpreter; there is no GPU"),
    "the kernel is wrong, the fallback is not": (
        TRITON.replace("mask=at < n) * 2", "mask=at < n) * 3"),
        Verdict.wrong_output,
        "family",
    ),
    "no kernel runs": (
        TRITON.replace("if not x.is_cuda", "if x.is_cuda"),
        Verdict.unmeasured,
        "not checked: no call launched a kernel, so the right answers are of what it falls back on",
    ),
}


@pytest.mark.parametrize("case", TRITON_CASES)
def test_what_right_answers_say_of_triton(case: str, few: Referee) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    source, verdict, begins = TRITON_CASES[case]
    found = tried(few, source)
    assert found.verdict is verdict and found.reason.startswith(begins), found.reason
    assert (found.launched == ("scale",)) == begins.startswith("right")


OTHERS = {
    "import cutlass.cute as cute\n@cute.kernel\ndef k(x): pass": "CuTe DSL kernels need a GPU",
    "S = '#include <hip/hip_runtime.h>\\n__global__ void k() {}'": "HIP kernels need an AMD GPU",
    "import pycuda.driver\npycuda.driver.x": "CUDA C++ that PyCUDA builds needs a GPU",
}


@pytest.mark.parametrize("source", OTHERS)
def test_kernels_that_need_a_gpu_are_named_and_not_called_wrong(source: str, few: Referee) -> None:
    found = tried(few, f"{source}\nclass ModelNew: pass")
    assert found.verdict is Verdict.unmeasured
    assert found.reason.startswith(f"not checked: {OTHERS[source]}")


def test_on_a_gpu_only_what_cannot_be_imported_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    [cute, hip, pycuda] = [candidate_of(source) for source in OTHERS]
    monkeypatch.setattr("kernelwright.kernelbench.languages.find_spec", lambda _: object())
    refuse_unavailable(cute, on_gpu=True)
    refuse_unavailable(pycuda, on_gpu=True)
    with pytest.raises(Refused, match="not checked: HIP kernels need an AMD GPU"):
        refuse_unavailable(hip, on_gpu=True)
    monkeypatch.setattr("kernelwright.kernelbench.languages.find_spec", lambda _: None)
    with pytest.raises(Refused, match="CuTe DSL is not installed here: pip install nvidia-cutlass-dsl"):
        refuse_unavailable(cute, on_gpu=True)


def test_a_kernel_for_other_sizes_runs_at_those(few: Referee, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = task_of(REFERENCE.replace("rows = 6", "rows = 5").replace("64", "63"))
    monkeypatch.setattr(without_gpu, "smaller", lambda *_: [[task_of(REFERENCE)]])
    found = without_gpu.EmulatedEvaluator(few, ()).evaluate(odd, candidate_of(COMPILED))
    assert found.reason.startswith("right in emulation"), found.reason
    assert found.launched == ("scale", "shift")
    assert few.evaluate(odd, candidate_of(COMPILED)).launched == ("scale",)


# What a worker may say.

ONE = candidate_of(COMPILED)


def launches(*kernels: str, calls: int = 3, idle: int = 0, **troubles: str) -> Launches:
    return Launches(kernels, calls, idle, tuple(troubles.items()))  # type: ignore[arg-type]


REFUSED = {
    "nothing was called": (launches(calls=0), Verdict.unmeasured, "no call launched"),
    "a call in three": (launches("scale", idle=2), Verdict.unmeasured, "only 1 of 3 calls launched a kernel"),
    "what was raised": (
        launches(idle=3, other="ValueError: n"),
        Verdict.unmeasured,
        "a kernel: ValueError: n",
    ),
    "a fault that was caught": (
        launches("scale", fault="KernelFault: k"),
        Verdict.runtime_error,
        "KernelFault: k",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_without_a_kernel_are_not_checked(case: str) -> None:
    found, verdict, says = REFUSED[case]
    with pytest.raises(Refused) as refused:
        refuse_fallback(found)
    assert refused.value.verdict is verdict and says in refused.value.reason


@pytest.mark.parametrize(
    "found", [launches("scale"), launches("scale", build="one way fails"), launches("a", unsupported="b")]
)
def test_kernels_that_ran_in_each_call_are(found: Launches) -> None:
    refuse_fallback(found)


def test_what_never_ran_is_named() -> None:
    assert reason(ONE, ("scale", "shift")).startswith("right in emulation")
    assert "scale (line 7), shift (line 11) never ran" in reason(ONE, ())


def test_a_limit_says_what_it_is_of() -> None:
    assert str(Unsupported("inline PTX", 3)) == "line 3: inline PTX cannot be emulated"
    assert str(Unsupported("CUDA graphs")) == "CUDA graphs cannot be emulated"
