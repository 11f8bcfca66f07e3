"""Names of `kernelwright.kernelbench.jit` for candidate files, which compile their kernels with them."""

from kernelwright.kernelbench.jit import (
    ArgumentError,
    BuildError,
    CppLibrary,
    CudaKernel,
    CudaModule,
    compile_cpp,
    compile_cuda,
)

__all__ = [
    "ArgumentError",
    "BuildError",
    "CppLibrary",
    "CudaKernel",
    "CudaModule",
    "compile_cpp",
    "compile_cuda",
]
