"""Cross entropy of each row of logits with its class."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" void cross_entropy(const float* x, const int64_t* target, float* y, int64_t rows,
                              int64_t classes) {
    for (int64_t r = 0; r < rows; ++r) {
        float most = -INFINITY;
        for (int64_t c = 0; c < classes; ++c) most = std::fmax(most, x[r * classes + c]);
        float sum = 0.0f;
        for (int64_t c = 0; c < classes; ++c) sum += std::exp(x[r * classes + c] - most);
        y[r] = std::log(sum) + most - x[r * classes + target[r]];
    }
}
""")


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = logits.new_empty(logits.shape[0])
        lib.cross_entropy(logits.contiguous(), target.contiguous(), y, logits.shape[0], logits.shape[1])
        return y
