"""Floats of eight bits in emulation, against torch's."""

import pytest
import torch

from kernelwright.kernelbench.jit.cuda import compile_cuda

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

SOURCE = """
#include <cuda_fp8.h>
extern "C" __global__ void one(const float* x, __nv_fp8_FORMAT* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __nv_fp8_FORMAT(x[i]);
}
extern "C" __global__ void four(const __nv_fp8x4_FORMAT* x, float4* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = float4(x[i]);
}
extern "C" __global__ void to_four(const float4* x, __nv_fp8x4_FORMAT* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __nv_fp8x4_FORMAT(x[i]);
}
extern "C" __global__ void unsaturated(const float* x, __nv_fp8_storage_t* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __nv_cvt_float_to_fp8(x[i], __NV_NOSAT, __NV_KIND);
}
"""


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_conversions_are_torchs(kind: torch.dtype) -> None:
    name = "e4m3" if kind is torch.float8_e4m3fn else "e5m2"
    module = compile_cuda(SOURCE.replace("FORMAT", name).replace("KIND", name.upper()))
    codes = torch.arange(256).to(torch.uint8).view(kind)
    read = torch.empty(256)
    module.four((1,), (64,), (codes, read, 64))
    assert torch.equal(read.nan_to_num(7.0, 8.0, 9.0), codes.float().nan_to_num(7.0, 8.0, 9.0))
    numbers = read[read.isfinite()].sort().values
    middle = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, middle, middle * (1 + 2**-23), middle * (1 - 2**-23), torch.randn(8)])
    x = torch.cat([x, x[: -len(x) % 4]])
    stored = [torch.empty(len(x), dtype=kind) for _ in range(2)]
    module.one((16,), (128,), (x, stored[0], len(x)))
    module.to_four((16,), (128,), (x, stored[1], len(x) // 4))
    for found in stored:
        assert torch.equal(found.float(), x.to(kind).float())
    large = torch.tensor([1e9, -1e9, float("inf"), float("nan")])
    module.one((1,), (4,), (large, stored[0], 4))
    most = torch.finfo(kind).max
    assert stored[0][:3].float().tolist() == [most, -most, most] and bool(stored[0][3].isnan())
    raw = torch.empty(4, dtype=torch.uint8)
    module.unsaturated((1,), (4,), (large, raw, 4))
    assert not raw.view(kind).float().isfinite().any()
