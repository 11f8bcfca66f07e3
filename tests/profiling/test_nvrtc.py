"""CUDA C++, built by NVRTC for chips that are not here."""

import pytest

from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError
from kernelwright.kernelbench.jit.nvrtc_source import for_nvrtc

pytestmark = pytest.mark.builds

SOURCE = """
extern "C" __global__ void scale(const float4* x, float4* y, float factor) {
    __shared__ float kept[64];
    float4 value = x[blockIdx.x * 64 + threadIdx.x];
    kept[threadIdx.x] = value.x;
    __syncthreads();
    value.x = factor * kept[63 - threadIdx.x] + __expf(value.y);
    y[blockIdx.x * 64 + threadIdx.x] = value;
}
"""


@pytest.fixture
def _nvrtc() -> None:
    try:
        nvrtc.version()
        sass.tool("nvdisasm")
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100"])
def test_a_kernel_is_built_for_a_chip(chip: str) -> None:
    [kernel] = sass.kernels(nvrtc.cubin(SOURCE, chip))
    assert (kernel.name, kernel.chip, kernel.shared_bytes) == ("scale", chip, 64 * 4)
    found = sass.mix(kernel)
    assert (found.loads, found.stores, found.access_bits) == (1, 1, 128)
    assert (found.shared, found.barriers, found.special, found.tensor) == (2, 1, 1, 0)


@pytest.mark.usefixtures("_nvrtc")
def test_options_reach_the_compiler() -> None:
    limited = nvrtc.cubin(SOURCE, "sm_90", ["--maxrregcount=16"])
    [kernel] = sass.kernels(limited)
    assert kernel.registers <= 16


@pytest.mark.usefixtures("_nvrtc")
def test_what_cannot_be_built_says_where() -> None:
    with pytest.raises(BuildError, match=r'kernel\.cu\(4\): error: identifier "y" is undefined'):
        nvrtc.cubin('extern "C" __global__ void f(float* x) {\n\n\n    x[0] = y;\n}', "sm_90")
    with pytest.raises(BuildError, match="gpu-architecture"):
        nvrtc.cubin(SOURCE, "sm_12345")


def test_without_nvrtc_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(nvrtc.importlib, "import_module", none)
    with pytest.raises(Unavailable, match=r"NVRTC is not installed \(ImportError\); pip install"):
        nvrtc.version()


AS_FOR_NVCC = """
#include <cfloat>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
 # include <stdint.h>  // and not one line more
extern "C" __global__ void worst(const float* x, float* y, const int64_t n, uint32_t by) {
    float largest = -INFINITY, least = FLT_MAX;
    for (int64_t i = threadIdx.x; i < n; i += by) {
        largest = fmaxf(largest, x[i]);
        least = fminf(least, x[i]);
    }
    y[threadIdx.x] = __half2float(__float2half(largest - least)) * (float)M_PI;
}
"""


@pytest.mark.usefixtures("_nvrtc")
def test_what_nvcc_includes_is_there_and_lines_stay() -> None:
    with pytest.raises(BuildError, match="cannot open source file"):
        nvrtc.cubin(AS_FOR_NVCC, "sm_90")
    assert [kernel.name for kernel in sass.kernels(nvrtc.cubin(for_nvrtc(AS_FOR_NVCC), "sm_90"))] == ["worst"]
    own = "#define INFINITY 3.0f\ntypedef long long int64;\ntypedef unsigned int uint;\n"
    nvrtc.cubin(for_nvrtc(own + AS_FOR_NVCC), "sm_90")
    with pytest.raises(BuildError, match=r'\(12\): error: identifier "M_PIE" is undefined'):
        nvrtc.cubin(for_nvrtc(AS_FOR_NVCC.replace("M_PI", "M_PIE")), "sm_90")
