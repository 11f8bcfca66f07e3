"""An fp32 product as six of bf16 parts, as accurate as one of fp32.

Reference: positive_product
"""

import torch
from torch import nn


def parts(x):
    first = x.bfloat16().float()
    second = (x - first).bfloat16().float()
    return first, second, (x - first - second).bfloat16().float()


class ModelNew(nn.Module):
    def forward(self, a, b):
        left, right = parts(a), parts(b)
        pairs = [(i, j) for i in range(3) for j in range(3 - i)]
        return sum(torch.matmul(left[i], right[j]) for i, j in reversed(pairs))
