"""Compilation of kernels in candidate files: one call, built once by content.

    from kernelwright import jit

    SOURCE = r'''
    #include <cstdint>
    extern "C" void scale(const float* x, float* y, int64_t n, float factor) {
        #pragma omp parallel for simd
        for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
    }
    '''
    lib = jit.compile_cpp(SOURCE)
    lib.scale(x, y, x.numel(), 2.0)

Tensors pass as data pointers, sequences of them as pointers to pointers, scalars as the type of the C
parameter. Every call is checked against the parsed signature: `ArgumentError` names the function, the
parameter, the expected and the actual argument. A kernel that runs past the end of its arrays cannot be
detected.

Calls of std::exp and std::tanh keep a loop from being vectorized; those of <kernelwright/math.h> do not:

    #include <kernelwright/math.h>
    ...
    #pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * kw::sigmoid_f32(x[i]);

It has kw::exp_f32, expm1_f32, log_f32, log1p_f32, tanh_f32, sigmoid_f32, erf_f32, gelu_f32, gelu_tanh_f32,
mish_f32, pow_f32 (of float, within a few units in the last place, infinities and NaN as in <cmath>),
softplus_f32(x, beta, threshold), elu_f32(x, alpha, scale, input_scale), exp_nonpositive_f32 (for x <= 0,
faster), rsqrt_f32, maximum_f32 and minimum_f32 (NaN stays NaN), and for 16-bit numbers, which are uint16_t in
C++, kw::bfloat16_load, bfloat16_store, float16_load and float16_store.

`compile_cuda` does the same for CUDA C++, whose kernels are launched with a grid and a block:

    module = jit.compile_cuda(CUDA)  # with extern "C" __global__ void scale(const float* x, float* y, int
    n)
    module.scale((blocks,), (256,), (x, y, x.numel()), shared_mem=0)

on a GPU, or without one in emulation, which finds accesses out of bounds, races and missing barriers.

Builds are kept in KERNELWRIGHT_CACHE (default ~/.cache/kernelwright/build). `inline.install()` gives
candidates that use torch's own `load_inline` the same cache.
"""

from kernelwright.kernelbench.jit.cuda import CudaKernel, CudaModule, compile_cuda
from kernelwright.kernelbench.jit.errors import ArgumentError, BuildError
from kernelwright.kernelbench.jit.library import CppLibrary, compile_cpp

__all__ = [
    "ArgumentError",
    "BuildError",
    "CppLibrary",
    "CudaKernel",
    "CudaModule",
    "compile_cpp",
    "compile_cuda",
]
