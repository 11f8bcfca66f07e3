"""Twice the ReLU of every element, in CuTe DSL."""

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack
from torch import nn

THREADS = 128


@cute.kernel
def twice_relu(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    if at < n:
        value = x[at]
        y[at] = value * 2.0 if value > 0.0 else 0.0 * value


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    twice_relu(x, y, n).launch(grid=(cute.ceil_div(n, THREADS), 1, 1), block=(THREADS, 1, 1))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.compiled = None

    def forward(self, x):
        y = torch.empty_like(x)
        arguments = from_dlpack(x.detach().view(-1)), from_dlpack(y.view(-1)), x.numel()
        if self.compiled is None:
            self.compiled = cute.compile(launch, *arguments)
        self.compiled(*arguments)
        return y
