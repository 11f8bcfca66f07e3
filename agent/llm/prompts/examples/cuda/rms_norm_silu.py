"""silu(rms_norm(x) * weight): one block a row, which it keeps in registers; 16-byte loads, one pass."""

from functools import cache

import torch
from torch import nn

from kernelwright import jit

# Constants of the build let loops unroll, so that `kept` lies in registers.
CUDA = r"""
#include <cuda_bf16.h>

constexpr int WIDTH = sizeof(PACK) / sizeof(REAL);
union Pack { PACK whole; REAL of[WIDTH]; };  // uint4: 4 floats or 8 bf16 in one load

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm_silu(const REAL* __restrict__ x, const REAL* __restrict__ weight, REAL* __restrict__ y,
              int columns, float eps) {
    const long row = (long)blockIdx.x * columns;
    const PACK* from = reinterpret_cast<const PACK*>(x + row);
    const PACK* factors = reinterpret_cast<const PACK*>(weight);
    const int packs = columns / WIDTH;
    Pack kept[PACKS];
    float squares = 0;  // sums in float, whatever REAL
    #pragma unroll
    for (int i = 0; i < PACKS; ++i) {  // coalesced
        const int at = threadIdx.x + i * THREADS;
        kept[i].whole = at < packs ? from[at] : PACK{};  // all loads before the first use
    }
    #pragma unroll
    for (int i = 0; i < PACKS; ++i)
        for (int j = 0; j < WIDTH; ++j) squares += (float)kept[i].of[j] * (float)kept[i].of[j];
    // Within warps by shuffles, without barriers; then over the warps' sums.
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    __shared__ float sums[THREADS / 32];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int warp = 0; warp < THREADS / 32; ++warp) squares += sums[warp];  // one broadcast each
    const float scale = rsqrtf(squares / columns + eps);
    #pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int at = threadIdx.x + i * THREADS;
        if (at >= packs) break;
        Pack w, out;
        w.whole = factors[at];  // from a cache: it is the same for all rows
        for (int j = 0; j < WIDTH; ++j) {
            const float v = (float)kept[i].of[j] * scale * (float)w.of[j];
            out.of[j] = (REAL)(v / (1 + __expf(-v)));  // within the tolerance
        }
        reinterpret_cast<PACK*>(y + row)[at] = out.whole;
    }
}
"""
NAMES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16"}


@cache
def build(dtype, pack, threads, packs):  # tenths of a second, once for each set of constants
    options = [f"-DREAL={NAMES[dtype]}", f"-DPACK={pack}", f"-DTHREADS={threads}", f"-DPACKS={packs}"]
    return jit.compile_cuda(CUDA, options)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))  # gets Model's values, by its name

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns, size = x.shape[-1], x.element_size()
        pack, packs = "uint4", columns * size // 16
        if columns * size % 16 or any(t.data_ptr() % 16 for t in (x, y, self.weight)):  # rows are not aligned
            pack, packs = ("unsigned" if size == 4 else "ushort"), columns
        threads = min(max(-(-packs // 2 // 32) * 32, 32), 1024)  # two packs each, whose loads overlap
        module = build(x.dtype, pack, threads, -(-packs // threads))
        module.rms_norm_silu((x.numel() // columns,), (threads,), (x, self.weight, y, columns, 1e-6))
        return y
