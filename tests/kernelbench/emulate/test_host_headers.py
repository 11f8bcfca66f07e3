"""Declarations of torch for CUDA, which only the headers that have them bring in, as for nvcc."""

import subprocess
from pathlib import Path

import pytest

from kernelwright.kernelbench.emulate.building import KERNEL_OPTIONS, write_headers
from kernelwright.kernelbench.jit import compiler

pytestmark = pytest.mark.builds


@pytest.mark.parametrize(
    ("code", "declaring", "not_declaring"),
    [
        ("C10_CUDA_KERNEL_LAUNCH_CHECK();", "c10/cuda/CUDAException.h", "cuda_runtime.h"),
        ("C10_CUDA_CHECK(cudaGetLastError());", "ATen/cuda/CUDAContext.h", "cuda_runtime.h"),
        ("AT_CUDA_CHECK(cudaGetLastError());", "ATen/cuda/Exceptions.h", "c10/cuda/CUDAException.h"),
        (
            "cudaStream_t s = at::cuda::getCurrentCUDAStream();",
            "ATen/cuda/CUDAContext.h",
            "c10/cuda/CUDAException.h",
        ),
        ("at::cuda::getCurrentDeviceProperties();", "ATen/cuda/CUDAContext.h", "c10/cuda/CUDAStream.h"),
        ("const at::cuda::OptionalCUDAGuard g(0);", "c10/cuda/CUDAGuard.h", "ATen/cuda/CUDAContext.h"),
        ("const c10::cuda::CUDAGuard g(0);", "ATen/cuda/CUDAEvent.h", "c10/cuda/CUDAStream.h"),
    ],
)
def test_a_name_is_declared_by_its_header_alone(
    tmp_path: Path, code: str, declaring: str, not_declaring: str
) -> None:
    write_headers(tmp_path)

    def compiles(header: str) -> bool:
        text = f'#include "host.h"\n#include <{header}>\nvoid f() {{ {code} }}\n'
        options = ("-std=gnu++20", "-fsyntax-only", "-I", ".", "-x", "c++", "-")  # torch's standard
        words = (*compiler.command(), *KERNEL_OPTIONS, *options)
        return subprocess.run(words, input=text.encode(), cwd=tmp_path, capture_output=True).returncode == 0

    assert compiles(declaring)
    assert not compiles(not_declaring)
