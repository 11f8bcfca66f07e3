"""One fused kernel in C++ with OpenMP, built for one set of shapes.

- `softmax_rows`: amax, sub, exp_nonpositive, sum, reciprocal, mul

Nothing is left to torch.
Schedule: fuse=all, vector=512, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelbench import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

static inline float float_of(int32_t i) {
    float x;
    std::memcpy(&x, &i, sizeof x);
    return x;
}

static inline int32_t bits_of(float x) {
    int32_t i;
    std::memcpy(&i, &x, sizeof i);
    return i;
}

// e^x for x <= 0 within 1.1 ulp. Without large results one factor serves: 2^(n + 24), and 2^-24 after it.
static inline float exp_nonpositive_f32(float x) {
    const float clamped = x < -104.0f ? -104.0f : x;
    const float shifted = std::fma(clamped, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = std::fma(n, -0.693359375f, clamped);
    r = std::fma(n, 2.12194440e-4f, r);
    const float r2 = r * r;
    const float high = std::fma(std::fma(1.9875691500e-4f, r, 1.3981999507e-3f), r2,
                                std::fma(8.3334519073e-3f, r, 4.1665795894e-2f));
    const float low = std::fma(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = std::fma(std::fma(high, r2, low), r2, r) + 1.0f;
    const float scale = float_of((bits_of(shifted) - (0x4b400000 - 127 - 24)) << 23);
    return p * (x < -104.0f ? 0.0f : scale) * 5.9604644775390625e-08f;
}

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

// 2048 rows of 4096; 3 passes over each.
// Schedule: keep=on, block=4096, streaming=on, prefetch=on.
extern "C" void softmax_rows(const float* x, float* mul_out) {
    constexpr int64_t ROWS = 2048, COLUMNS = 4096;
    constexpr int64_t BLOCK = 4096;
    #pragma omp parallel
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < ROWS; ++row) {
            const float* x_row = x + row * COLUMNS;
            float* mul_out_row = mul_out + row * COLUMNS;
            alignas(64) float exp_kept[COLUMNS];
            float amax = -INFINITY;
            int32_t amax_nan = 0;
            #pragma omp simd reduction(max : amax) reduction(| : amax_nan)
            for (int64_t i = 0; i < COLUMNS; ++i) {
                const float amax_value = x_row[i];
                amax = amax_value > amax ? amax_value : amax;
                amax_nan |= amax_value != amax_value;
            }
            if (amax_nan) amax = NAN;
            double sum_1_total = 0.0;
            for (int64_t start = 0; start < COLUMNS; start += 256) {
                #pragma GCC unroll 1
                for (int64_t p = start; p < start + 256; p += 16) {
                    __builtin_prefetch(x_row + COLUMNS + p);
                }
                float sum_1 = 0.0f;
                #pragma omp simd reduction(+ : sum_1)
                for (int64_t i = 0; i < 256; ++i) {
                    const float sub = x_row[start + i] - amax;
                    const float exp = exp_nonpositive_f32(sub);
                    exp_kept[start + i] = exp;
                    sum_1 = sum_1 + exp;
                }
                sum_1_total += sum_1;
            }
            const float sum_1 = static_cast<float>(sum_1_total);
            const float reciprocal = 1.0f / sum_1;
            alignas(64) float mul_block[BLOCK];
            #pragma omp simd
            for (int64_t i = 0; i < COLUMNS; ++i) {
                const float exp = exp_kept[i];
                const float mul = exp * reciprocal;
                mul_block[i] = mul;
            }
            stream_bytes(mul_out_row, mul_block, COLUMNS * sizeof(float));
        }
        stream_fence();
    }
}
"""

lib = jit.compile_cpp(SOURCE)

X_SHAPE = (2048, 4096)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        x = checked("x", x, X_SHAPE, torch.float32)
        mul = torch.empty((2048, 4096))
        lib.softmax_rows(x, mul)
        return mul
