"""Convolution of images with zero padding, by seven loops."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void conv(const float* x, const float* weight, const float* bias, float* y, int64_t images,
                     int64_t channels, int64_t kernels, int64_t height, int64_t width, int64_t size,
                     int64_t padding) {
    const int64_t down = height + 2 * padding - size + 1, across = width + 2 * padding - size + 1;
    for (int64_t n = 0; n < images; ++n)
        for (int64_t k = 0; k < kernels; ++k)
            for (int64_t i = 0; i < down; ++i)
                for (int64_t j = 0; j < across; ++j) {
                    float sum = bias[k];
                    for (int64_t c = 0; c < channels; ++c)
                        for (int64_t p = 0; p < size; ++p)
                            for (int64_t q = 0; q < size; ++q) {
                                const int64_t h = i + p - padding, w = j + q - padding;
                                if (h < 0 || h >= height || w < 0 || w >= width) continue;
                                sum += x[((n * channels + c) * height + h) * width + w] *
                                       weight[((k * channels + c) * size + p) * size + q];
                            }
                    y[((n * kernels + k) * down + i) * across + j] = sum;
                }
}
""")


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, channels, height, width = x.shape
        kernels, _, size, _ = self.conv.weight.shape
        padding = int(self.conv.padding[0])
        grown = 2 * padding - size + 1
        y = x.new_empty(images, kernels, height + grown, width + grown)
        weights = (self.conv.weight, self.conv.bias)
        lib.conv(x.contiguous(), *weights, y, images, channels, kernels, height, width, size, padding)
        return y
