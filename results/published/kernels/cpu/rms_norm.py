"""One fused kernel in C++ with OpenMP, built for any batch_size and tokens.

- `pow_sum_div_add_rows`: pow, sum, div, add, rsqrt, mul

Nothing is left to torch.
Schedule: fuse=all, vector=512, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

static inline float rsqrt_f32(float x) { return 1.0f / std::sqrt(x); }

static inline void stream_fence() {
#if defined(__AVX__)
    _mm_sfence();
#endif
}

// Copies past the caches: the lines written are not read first. `stream_fence` makes them visible.
static inline void stream_bytes(void* to, const void* from, int64_t bytes) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
#if defined(__AVX512F__)
    const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(target) & 63);
    std::memcpy(target, source, head);
    int64_t at = head;
    for (; at + 64 <= bytes; at += 64)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), _mm512_loadu_si512(source + at));
#elif defined(__AVX__)
    const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(target) & 31);
    std::memcpy(target, source, head);
    int64_t at = head;
    for (; at + 32 <= bytes; at += 32)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at)));
#else
    int64_t at = 0;
#endif
    std::memcpy(target + at, source + at, bytes - at);
}

// batch_size * tokens rows of 256; 2 passes over each.
// Schedule: block=256, streaming=on, prefetch=on.
extern "C" void pow_sum_div_add_rows(
    const float* hidden,
    const float* weight,
    float* mul_1_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t ROWS = batch_size * tokens;
    constexpr int64_t COLUMNS = 256;
    constexpr int64_t BLOCK = 256;
    #pragma omp parallel if (batch_size * tokens * 256 >= 32768)
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < ROWS; ++row) {
            const float* hidden_row = hidden + row * COLUMNS;
            float* mul_1_out_row = mul_1_out + row * COLUMNS;
            float sum_1 = 0.0f;
            #pragma omp simd reduction(+ : sum_1)
            for (int64_t i = 0; i < COLUMNS; ++i) {
                const float pow_1 = hidden_row[i] * hidden_row[i];
                sum_1 = sum_1 + pow_1;
            }
            const float div = sum_1 / 256.0f;
            const float add = div + 1e-05f;
            const float rsqrt = rsqrt_f32(add);
            #pragma GCC unroll 1
            for (int64_t p = 0; p < COLUMNS; p += 16) {
                __builtin_prefetch(hidden_row + COLUMNS + p);
            }
            alignas(64) float mul_1_block[BLOCK];
            #pragma omp simd
            for (int64_t i = 0; i < COLUMNS; ++i) {
                const float mul = hidden_row[i] * rsqrt;
                const float mul_1 = weight[i] * mul;
                mul_1_block[i] = mul_1;
            }
            stream_bytes(mul_1_out_row, mul_1_block, COLUMNS * sizeof(float));
        }
        stream_fence();
    }
}
"""

lib = jit.compile_cpp(SOURCE)

HIDDEN_SHAPE = ("batch_size", "tokens", 256)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    def __init__(self, features: int, eps: float):
        if (features, eps) != (256, 1e-05):
            raise ValueError("these kernels are built for ModelNew(256, 1e-05)")
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    @torch.no_grad()
    def forward(self, hidden):
        hidden = checked("hidden", hidden, HIDDEN_SHAPE, torch.float32)
        batch_size, tokens = hidden.shape[0], hidden.shape[1]
        mul_1 = torch.empty((batch_size, tokens, 256), dtype=torch.float32, device="cpu")
        lib.pow_sum_div_add_rows(hidden, self.weight, mul_1, batch_size, tokens)
        return mul_1
