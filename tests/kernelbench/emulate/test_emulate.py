"""CUDA C++ without a GPU: what it computes, and what is found of what a GPU hides."""

import pytest
import torch

from kernelwright.kernelbench.emulate.findings import KernelFault, Unsupported
from kernelwright.kernelbench.emulate.launching import collected, traffic
from kernelwright.kernelbench.emulate.memory import fresh_memory
from kernelwright.kernelbench.jit.cuda import compile_cuda
from kernelwright.kernelbench.jit.errors import ArgumentError, BuildError

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

PRODUCT = r"""
extern "C" __global__ void product(const float* A, const float* B, float* C, int n) {
    __shared__ float As[32][32];
    __shared__ float Bs[32][32];
    int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
    float acc = 0;
    for (int t = 0; t < n / 32; ++t) {
        As[threadIdx.y][threadIdx.x] = A[row * n + t * 32 + threadIdx.x];
        Bs[threadIdx.y][threadIdx.x] = B[(t * 32 + threadIdx.y) * n + col];
        __syncthreads();
        for (int k = 0; k < 32; ++k) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
        __syncthreads();
    }
    C[row * n + col] = acc;
}
"""
ADD = r"""
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""
ROWS = r"""
template <int N>
__device__ float block_sum(float v) {
    __shared__ float part[N / 32];
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < N / 32 ? part[threadIdx.x] : 0.0f;
        for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
    }
    return v;
}
extern "C" __global__ void __launch_bounds__(256) rows(const float* __restrict__ x, float* __restrict__ y, int n) {
    extern __shared__ float kept[];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
    kept[threadIdx.x] = block_sum<256>(v);
    if (threadIdx.x == 0) y[blockIdx.x] = kept[0];
}
"""


def test_a_tiled_product() -> None:
    a, b, c = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64)
    compile_cuda(PRODUCT).get_function("product")((2, 2), (32, 32), (a, b, c, 64))
    torch.testing.assert_close(c, a @ b)


def test_a_missing_barrier_is_a_race_with_its_line() -> None:
    without = PRODUCT.replace("        __syncthreads();\n    }", "    }")
    a, b, c = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64)
    with collected() as findings:
        compile_cuda(without).product((2, 2), (32, 32), (a, b, c, 64))
    assert {f.kind for f in findings} == {"read_after_write", "write_after_read"}
    assert {f.line for f in findings} == {8, 9, 11}
    assert any("'As', which has 4096 bytes" in f.says for f in findings)


def test_an_access_beyond_the_end_is_named() -> None:
    a, b, c = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    add = compile_cuda(ADD.replace("if (i < n) ", "")).get_function("add")
    with pytest.raises(
        KernelFault, match=r"Invalid __global__ read of size 4 bytes at kernel.cu:4"
    ) as caught:
        add((4,), (256,), (a, b, c, 1000))
    [found, *_] = caught.value.findings
    assert found.kind == "out_of_bounds" and found.block == (3, 0, 0) and found.count == 24


def test_rows_with_shuffles_and_shared_memory_of_both_kinds() -> None:
    x, y = torch.randn(20, 1000), torch.empty(20)
    rows = compile_cuda(ROWS).get_function("rows")
    rows((20,), (256,), (x, y, 1000), shared_mem=1024)
    torch.testing.assert_close(y, x.sum(1), rtol=1e-4, atol=1e-4)
    with pytest.raises(KernelFault, match=r"'shared_mem', which has 1020 bytes"):
        rows((20,), (256,), (x, y, 1000), shared_mem=1020)


def test_a_barrier_that_not_all_come_to() -> None:
    source = ADD.replace("if (i < n) ", "if (threadIdx.x % 2) __syncthreads(); else __syncthreads(); ")
    x = torch.ones(64)
    with pytest.raises(KernelFault, match="divergent threads"):
        compile_cuda(source).add((1,), (64,), (x, x, torch.empty(64), 64))


def test_what_cannot_be_emulated_is_named_with_its_line() -> None:
    with pytest.raises(Unsupported, match="line 4: inline PTX"):
        compile_cuda(ADD.replace("if (i < n)", 'asm volatile("bar.sync 0;"); if (i < n)'))


def test_what_does_not_compile_is_shown_with_its_line() -> None:
    """It was a line above, by as many as ours come before the source."""
    with pytest.raises(BuildError, match=r"kernel\.cu:3:\d+: error.*\n +3 \|     x\[0\] = unknown;"):
        compile_cuda('extern "C" __global__ void k(float* x) {\n    x[1] = 1;\n    x[0] = unknown;\n}\n')


def test_arguments_are_checked() -> None:
    add = compile_cuda(ADD).add
    x = torch.ones(8)
    with pytest.raises(ArgumentError, match="takes 4 arguments, got 3"):
        add((1,), (8,), (x, x, x))
    with pytest.raises(ArgumentError, match=r"expected a tensor of torch.float32, got torch.float64"):
        add((1,), (8,), (x, x.double(), x, 8))


def test_a_read_of_what_nothing_has_written_is_named() -> None:
    add = compile_cuda(ADD).add
    x, half = torch.ones(64), torch.empty(64)
    with fresh_memory():
        y, z = torch.empty(64), torch.empty(64)
        add((1,), (64,), (x, x, y, 64))
        add((1,), (64,), (x, y, z, 64))  # which has been written by then
        with pytest.raises(
            KernelFault, match=r"Uninitialized __global__ memory read of size 4 .*kernel.cu:4"
        ):
            add((1,), (64,), (x, torch.empty(64), z, 64))
        add((1,), (64,), (x, torch.empty(64).zero_(), z, 64))
        add((1,), (64,), (half, torch.zeros(64), z, 64))  # not made in here: nothing is known of it


def test_what_warps_ask_of_memory_is_counted() -> None:
    source = r"""
extern "C" __global__ void turn(const float* x, float* y, int n) {
    __shared__ float tile[32][32];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * n + threadIdx.x];
    __syncthreads();
    y[threadIdx.x * n + threadIdx.y] = tile[threadIdx.y][threadIdx.x];
    __syncthreads();
    y[threadIdx.y * n + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""
    x, y = torch.randn(32, 32), torch.empty(32, 32)
    with traffic() as found:
        compile_cuda(source).turn((1,), (32, 32), (x, y, 32))
    told = {(t.line, t.space, t.access): (t.requests, t.pieces, t.least) for t in found}
    assert told == {
        (4, "global", "read"): (32, 128, 128),
        (4, "shared", "write"): (32, 32, 32),
        (6, "shared", "read"): (32, 32, 32),
        (6, "global", "write"): (32, 1024, 128),  # a sector for each of its threads
        (8, "shared", "read"): (32, 1024, 32),  # all in one bank
        (8, "global", "write"): (32, 128, 128),
    }
    torch.testing.assert_close(y, x.T.contiguous())


def test_options_mean_what_they_do_on_a_gpu() -> None:
    source = r"""
    extern "C" __global__ void of_both(const float* x, float* y) {
        y[0] = expf(x[0]);
        y[1] = __expf(x[0]);
        y[2] = fmaf(x[0], x[0], -x[1]);
        y[3] = x[0] * x[0] - x[1];
    }"""
    x, y = torch.tensor([10.1, 10.1**2]), torch.empty(4)
    compile_cuda(source).of_both((1,), (1,), (x, y))
    assert y[0] != y[1] and y[2] == y[3]
    compile_cuda(source, ("--use_fast_math", "-fmad=false")).of_both((1,), (1,), (x, y))
    assert y[0] == y[1] and y[2] != y[3]


def test_fast_math_s_tanh_is_as_coarse_as_a_gpu_s() -> None:
    """Within 2^-11 of the result, and for some x no better than 2^-12; tanhf itself is within 2 ulp."""
    source = (
        'extern "C" __global__ void f(const float* x, float* y) { y[threadIdx.x] = tanhf(x[threadIdx.x]); }'
    )
    x, y = torch.linspace(-3, 3, 1024), torch.empty(1024)
    exact = x.double().tanh()
    compile_cuda(source).f((1,), (1024,), (x, y))
    assert ((y - exact) / exact).abs().max() < 2**-21
    compile_cuda(source, ("-use_fast_math",)).f((1,), (1024,), (x, y))
    assert 2**-12 < ((y - exact) / exact).abs().max() <= 2**-11


def test_macros_of_one_letter_change_the_candidate_alone() -> None:
    """As in CUDA's headers, no name of one letter stands in those of the emulator."""
    source = r"""
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    #include <mma.h>
    extern "C" __global__ void f(const T* x, T* y) {
        const T sum = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1) + atomicAdd(&y[0], (T)0) + (T)__half(1.0f);
        y[N + threadIdx.x] = fmaxf(sum, (T)A);
    }"""
    x, y = torch.arange(32.0), torch.zeros(36)
    names = [
        f"-D{chr(letter)}={letter}" for letter in range(ord("A"), ord("Z") + 1) if chr(letter) not in "NTA"
    ]
    compile_cuda(source, ("-DT=float", "-DN=4", "-DA=0", *names)).f((1,), (32,), (x, y))
    assert y[4:].tolist() == [(lane ^ 1) + 1 for lane in range(32)]


def test_a_pointer_to_pointers_is_refused() -> None:
    module = compile_cuda('extern "C" __global__ void all(float** rows) { rows[0][0] = 1; }')
    with pytest.raises(ArgumentError, match=r"'rows' is a float\*\*; pass an int64 tensor of data_ptr\(\)"):
        module.all((1,), (1,), ([torch.ones(1)],))
