"""silu(rms_norm(x) * weight): reductions of rows, vectorized exponentials; one pass over memory, not six."""

import torch
from torch import nn

from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <kernelwright/math.h>

constexpr long BLOCK = 1024;  // floats: 4 KB, which stay in the L1 cache

extern "C" void rms_norm_silu(const float* x, const float* weight, float* y,
                              long rows, long columns, float eps) {
    #pragma omp parallel
    {
        alignas(64) float block[BLOCK];  // one for each thread
        #pragma omp for nowait
        for (long r = 0; r < rows; ++r) {  // rows are independent: one thread each, no synchronization
            const float* from = x + r * columns;
            float squares = 0;
            #pragma omp simd reduction(+ : squares)  // lets the compiler add in vectors, in another order
            for (long c = 0; c < columns; ++c) squares += from[c] * from[c];
            const float scale = 1 / std::sqrt(squares / columns + eps);
            for (long at = 0; at < columns; at += BLOCK) {  // the row is in the L1 or L2 cache by now
                const long length = std::min(BLOCK, columns - at);
                // std::exp would be one call a number. kw::sigmoid_f32 has no branches and no calls, so the
                // loop becomes vector code; it is as exact (2.5 ulp) and right for infinities and NaN.
                #pragma omp simd
                for (long c = 0; c < length; ++c) {
                    const float v = from[at + c] * scale * weight[at + c];
                    block[c] = v * kw::sigmoid_f32(v);
                }
                // y is larger than the caches and not read again here. A plain store would first read each
                // line that it writes; streaming stores do not, which saves a third of the traffic.
                kw::stream_bytes(y + r * columns + at, block, length * sizeof(float));
            }
        }
        kw::stream_fence();  // the last thing each thread does: makes its streaming stores visible
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))  # named and shaped as Model's: gets its values

    def forward(self, x):
        x = x.contiguous()  # the kernel indexes rows by itself; this costs nothing if they are contiguous
        y = torch.empty_like(x)
        columns = x.shape[-1]
        lib.rms_norm_silu(x, self.weight, y, x.numel() // columns, columns, 1e-6)
        return y
