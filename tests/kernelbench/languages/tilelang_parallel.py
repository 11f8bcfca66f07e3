"""Twice the ReLU of every element, in TileLang."""

import tilelang
import tilelang.language as T
from torch import nn


@tilelang.jit(out_idx=[-1])
def twice_relu(n, block=1024, dtype="float32"):
    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, block), threads=128) as at:
            for i in T.Parallel(block):
                Y[at * block + i] = T.max(X[at * block + i], 0.0) * 2.0

    return main


class ModelNew(nn.Module):
    def forward(self, x):
        return twice_relu(x.numel())(x.view(-1)).view(x.shape)
