"""What of a `load_inline` source is left for NVRTC."""

import pytest

from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.chips.device_code import device_code
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError
from kernelwright.kernelbench.jit.nvrtc_source import for_nvrtc

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <vector>
#define CHECK(x) TORCH_CHECK(x.is_cuda(), #x " must be on the GPU")
constexpr int BLOCK = 256;
struct Pair { float a, b; };
namespace helpers {
template <typename T>
__device__ __forceinline__ T twice(T x) { return x + x; }  // torch::Tensor is not here
int rounded_up(int n, int by) { return (n + by - 1) / by; }
}
__constant__ float table[2] = {1.0f, 2.0f};
template <typename T, int N>
__global__ void scale(const T* __restrict__ x, T* y, int n) {
    int i = blockIdx.x * N + threadIdx.x;
    if (i < n) y[i] = helpers::twice(x[i]) * table[1];
}
torch::Tensor scale_cuda(torch::Tensor x);
torch::Tensor scale_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int n = x.numel();
    scale<float, BLOCK><<<helpers::rounded_up(n, BLOCK), BLOCK>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale_cuda, "scales {x}"); }
"""


def test_kernels_stay_where_they_are_and_host_code_goes() -> None:
    left = device_code(SOURCE)
    lines, before = left.splitlines(), SOURCE.splitlines()
    assert len(lines) == len(before)
    kept = [line.strip() for line in lines if line.strip()]
    for word in ("torch", "rounded_up", "PYBIND11", "<vector>", "<<<"):
        assert word not in left.replace("// torch::Tensor is not here", "").replace("TORCH_CHECK", ""), word
    for number, line in enumerate(before):
        if "__global__" in line or "twice" in line or "table[2]" in line or "BLOCK = 256" in line:
            assert lines[number] == line or "<<<" in line
    assert "struct Pair { float a, b; };" in kept and "#include <cuda_fp16.h>" in kept
    assert "namespace helpers {" in kept


@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100"])
def test_instances_of_templates_are_built_for_chips(chip: str) -> None:
    try:
        nvrtc.version()
    except Unavailable as error:
        pytest.skip(str(error))
    found = nvrtc.code(for_nvrtc(device_code(SOURCE)), chip, kernels=("scale<float, BLOCK>",))
    cubin, [name] = found.cubin, found.names
    [kernel] = sass.kernels(cubin)
    assert kernel.name == name and "scale" in name and kernel.registers > 0
    with pytest.raises(BuildError, match="undefined"):
        nvrtc.code(for_nvrtc(device_code(SOURCE)), chip, kernels=("scale<scalar_t, BLOCK>",))
