"""What a candidate file imports to compile its kernels: the names of `kernelwright.kernelbench.jit`."""

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
