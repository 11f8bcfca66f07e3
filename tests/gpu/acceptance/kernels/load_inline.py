from torch import nn
from torch.utils.cpp_extension import load_inline

lib = load_inline(
    "two",
    cpp_sources="torch::Tensor two(torch::Tensor x);",
    functions=["two"],
    cuda_sources=r"""
#include <ATen/cuda/CUDAContext.h>
__global__ void kernel(const float* x, float* y, long n) {
    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) { const float v = x[i] * 2.0f; y[i] = (v < 0.0f ? 0.0f : v) + 1.0f; }
}
torch::Tensor two(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const auto stream = at::cuda::getCurrentCUDAStream();
    kernel<<<(x.numel() + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x):
        return lib.two(x)
