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
