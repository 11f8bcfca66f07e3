"""Which kernels a candidate file defines, and in what language, as its text says."""

import pytest

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.kernels import KernelFile

TRITON = """
import torch, triton
from triton import jit as compiled
import triton.language as tl

@triton.jit
def twice(x):
    return x * 2

@triton.autotune(configs=[], key=[])
@triton.jit
def forward(x, y, n, BLOCK: tl.constexpr):
    tl.store(y, twice(tl.load(x)))

@compiled(do_not_specialize=["n"])
def backward(x, y, n):
    pass

@triton.jit
def relu(x):
    return x

def plain(x, ACT: tl.constexpr):
    return ACT(x)

scaled = triton.jit(plain)

def run(x):
    scaled[(1,)](x, ACT=relu)
"""
CUDA = '''
from torch.utils.cpp_extension import load_inline

"""__global__ void not_a_source();"""
HEADER = "#define KERNEL(name) __global__ void name"
SOURCE = r"""
// __global__ void in_a_comment()
template <typename T, int N>
__global__ void __launch_bounds__(N * (1 + 1), 2) scale(const T* x, T* y) {}
static __device__ float helper(float x) { return x; }
namespace inner { __global__ __cluster_dims__(2, 1, 1)
void shift(float* x); }
"""
extension = load_inline("both", "void run();", SOURCE + f"__global__ void made_{3}() {{}}", functions=["run"])
'''


def test_kernels_of_triton_are_those_that_no_other_kernel_calls() -> None:
    file = KernelFile(TRITON)
    assert [str(kernel) for kernel in file.kernels] == [
        "forward (line 12)",
        "backward (line 16)",
        "plain (line 23)",
    ]
    assert file.language == "triton"


def test_kernels_of_cuda_are_found_in_strings_that_are_sources() -> None:
    file = KernelFile(CUDA)
    assert [str(kernel) for kernel in file.kernels] == ["scale (line 9)", "shift (line 12)"]
    assert file.language == "cuda"


LANGUAGES = {
    "import torch, triton\n@triton.jit\ndef k(x): pass": "triton",
    "import triton  # left over\nfrom kernelwright import jit\njit.compile_cuda(source())": "cuda",
    "import triton\nfrom torch.utils.cpp_extension import load_inline\nload_inline('a', 'int f();')": "cpp",
    "from torch.utils.cpp_extension import load\nload('a', ['k.cpp'])": "cpp",
    "from torch.utils.cpp_extension import load\nSOURCE = '__global__ void k(int n) {}'\nload('a', ['k.cu'])": "cuda",
    "import ctypes\nctypes.CDLL('k.so')": "cpp",
    "import torch\n# triton.jit, load_inline and __global__ in a comment": "torch",
    "import torch\n'''load_inline builds a __global__ function'''": "torch",
    "def broken(:": "torch",
}


@pytest.mark.parametrize("source", LANGUAGES)
def test_the_language_is_that_of_the_kernels(source: str) -> None:
    assert language_of(source) == LANGUAGES[source]


OTHERS = {
    "from pycuda.compiler import SourceModule\nSourceModule('__global__ void k(int n) {}')": "PyCUDA",
    "from cuda.bindings import nvrtc\nnvrtc.nvrtcCreateProgram(b'__global__ void k() {}')": "CUDA Python",
    "import torch\nk = torch.cuda._compile_kernel('__global__ void k() {}', 'k')": "torch.cuda._compile_kernel",
    "import cutlass\nplan = cutlass.op.Gemm()": "CUTLASS's Python interface",
    "import cupy\nx = cupy.from_dlpack(y)": "",  # makes no kernel
    "import torch\nwarp = 3\nwarp.real\ntorch.cuda.synchronize()": "",
    TRITON: "",
    CUDA: "",
}


@pytest.mark.parametrize("source", OTHERS)
def test_other_builders_of_cuda_are_named(source: str) -> None:
    assert KernelFile(source).other_builder == OTHERS[source]
