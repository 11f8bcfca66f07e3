"""What the emulator refuses of a source for its text, what it does not, and what it makes of the rest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.emulate.translation import global_functions, translate

pytestmark = pytest.mark.builds

REFUSED = {
    'asm volatile("mov.u32 %0, 1;" : "=r"(x));': "inline PTX",
    "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 8, 8, 32, nvcuda::wmma::experimental::precision::s4> a;": "wmma of parts of a byte",
    "cuda::memcpy_async(group, to, from, 4, pipe);": "asynchronous copies and libcu++",
    "::cuda::std::array<int, 3> a;": "asynchronous copies and libcu++",
    "cub::BlockReduce<float, 128> reduce;": "CUB",
    "using namespace cub;": "CUB",
    "curand_init(1, 2, 3, &state);": "fp4, fp6 and random numbers",
    "cublasSgemm(handle);": "CUDA's libraries",
    "auto handle = at::cuda::getCurrentCUDABlasHandle();": "CUDA's libraries",
    "cudaMalloc(&p, 4);": "memory of cudaMalloc",
    "long long t = clock64();": "clocks",
}
TAKEN = (
    "#include <cutlass/gemm.h>\n#include <cub/cub.cuh>\n#include <cublas_v2.h>\n#include <cuda/std/limits>  // unused",
    "auto stream = at::cuda::getCurrentCUDAStream(); c10::cuda::CUDAGuard guard(x.device());",
    "using at::cuda::getCurrentCUDAStream;",
    "auto began = std::clock(); timer.clock();",
    "// cub::BlockReduce in a comment\n",
    'const char* text = R"(asm volatile("") and cub::BlockReduce)";',
    "torch::cuda::synchronize();",
)


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_emulated_is_refused_by_its_use(text: str) -> None:
    with pytest.raises(Unsupported, match=f"line 2: {REFUSED[text].replace('+', '.')} cannot be emulated"):
        translate(f"void f() {{\n{text}\n}}", (), host=True)


@pytest.mark.parametrize("text", TAKEN)
def test_what_only_looks_like_it_is_taken(text: str) -> None:
    translated = translate(f"{text}\nvoid f() {{}}", (), host=True)
    assert translated.original.count("\n") == text.count("\n") + 1  # lines stay where they are


def test_host_code_finds_its_tensors_where_they_are() -> None:
    text = (
        "TORCH_CHECK(x.is_cuda()); auto y = torch::empty({2}, torch::kCUDA);\n"
        "TORCH_LIBRARY_IMPL(mine, CUDA, m) { m.impl(0); }\n"
    )
    source = translate(text, (), host=True).source
    assert "TORCH_CHECK(x.defined())" in source and "torch::kCPU" in source
    assert "TORCH_LIBRARY_IMPL(mine, CPU, m)" in source


def test_global_functions_are_found_whatever_stands_before_their_names() -> None:
    text = """
#define KERNEL(name) __global__ void name
template <int N> __global__ __launch_bounds__(N, (2 + 1)) void first(int n) {}
static __global__
void second(const float* __restrict__ x);
/* __global__ void third() */
"""
    assert list(global_functions(text)) == [("first", 3), ("second", 5)]


def test_a_folder_of_sources_is_read_and_nothing_of_it_is_run(tmp_path: Path) -> None:
    kernel = "__global__ void k(float* x) { %s }"
    (tmp_path / "ptx.cu").write_text(kernel % 'asm volatile("");')
    record = {"code": f"SOURCE = r'''{kernel % ''}'''\nraise SystemExit('this was run')"}
    (tmp_path / "some.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(record)}\n")
    (tmp_path / "notes.txt").write_text("A __global__ function is a kernel.")
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright.kernelbench.emulate", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "ptx.cu: line 1: inline PTX cannot be emulated",
        "1 of 2 sources are rejected (50.00%)",
        "     1  inline PTX",
    ]
