"""Normalization of groups of channels of an image."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void group_norm(const float* x, const float* weight, const float* bias, float* y,
                           int64_t images, int64_t groups, int64_t channels, int64_t pixels) {
    for (int64_t g = 0; g < images * groups; ++g) {
        const float* from = x + g * channels * pixels;
        float sum = 0.0f;
        for (int64_t i = 0; i < channels * pixels; ++i) sum += from[i];
        const float mean = sum / (channels * pixels);
        float squares = 0.0f;
        for (int64_t i = 0; i < channels * pixels; ++i) squares += (from[i] - mean) * (from[i] - mean);
        const float scale = 1.0f / std::sqrt(squares / (channels * pixels) + 1e-5f);
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t i = 0; i < pixels; ++i) {
                const int64_t channel = g % groups * channels + c;
                const float off = from[c * pixels + i] - mean;
                y[(g * channels + c) * pixels + i] = off * scale * weight[channel] + bias[channel];
            }
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, channels, height, width = x.shape
        groups = self.norm.num_groups
        y = torch.empty_like(x)
        sizes = (images, groups, channels // groups, height * width)
        lib.group_norm(x.contiguous(), self.norm.weight, self.norm.bias, y, *sizes)
        return y
