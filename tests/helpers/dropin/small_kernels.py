"""Tasks with right kernels, small enough to be built in a moment."""

import textwrap

RMS_NORM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def get_inputs():
    return [torch.randn(4, 16, 64)]


def get_init_inputs():
    return [64, 1e-6]
"""

RMS_NORM_KERNEL = '''
import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void rms_norm(const float* x, const float* weight, float* out, int64_t rows, int64_t width, float eps) {
    #pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += double(x[row * width + i]) * x[row * width + i];
        const float factor = 1.0f / std::sqrt(float(sum / width) + eps);
        for (int64_t i = 0; i < width; ++i) out[row * width + i] = x[row * width + i] * factor * weight[i];
    }
}
"""

lib = jit.compile_cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.rms_norm(x, self.weight, out, x.numel() // x.shape[-1], x.shape[-1], self.eps)
        return out
'''

SIGMOIDS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return torch.sigmoid(x), torch.sigmoid(x + y)


def get_inputs():
    return [torch.randn(8, 32), torch.randn(8, 32)]


def get_init_inputs():
    return []
"""

SIGMOIDS_KERNEL = '''
import torch
from torch import nn

from kernelwright.jit import compile_cpp

SOURCE = r"""
#include <kernelwright/math.h>
#include <cstdint>
extern "C" void sigmoids(const float* const* in, float* const* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        out[0][i] = kw::sigmoid_f32(in[0][i]);
        out[1][i] = kw::sigmoid_f32(in[0][i] + in[1][i]);
    }
}
"""

lib = compile_cpp(SOURCE, ["-O2"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        outs = [torch.empty_like(x), torch.empty_like(x)]
        lib.sigmoids([x.contiguous(), y.contiguous()], outs, x.numel())
        return outs[0], outs[1]
'''


def changed(source: str, old: str, new: str) -> str:
    assert old in source
    return textwrap.dedent(source.replace(old, new))
