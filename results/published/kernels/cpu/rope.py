"""One fused kernel in C++ with OpenMP, built for any batch_size and tokens.

- `neg_mul_add`: neg, mul, add

Nothing is left to torch.
Schedule: vector=256, unroll=off; each kernel names its own.
"""

import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
#if defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=256")
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

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

// batch_size * tokens * 8 rows of 32; 1 pass over each.
// Schedule: streaming=on.
extern "C" void neg_mul_add(
    const float* query,
    const float* sine,
    const float* cosine,
    const float* key,
    float* add_0_out,
    float* add_1__out,
    float* add_1_0_out,
    float* add_1_1_out,
    int64_t batch_size,
    int64_t tokens) {
    const int64_t ROWS = batch_size * tokens * 8;
    constexpr int64_t COLUMNS = 32;
    constexpr int64_t BLOCK = 32;
    #pragma omp parallel if (batch_size * tokens * 256 >= 10922)
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < ROWS; ++row) {
            const float* query_row = query + row * 64 + 32;
            const float* sine_row = sine + row % tokens * 64;
            const float* query_row_ = query + row * 64;
            const float* sine_row_ = sine + row % tokens * 64 + 32;
            const float* cosine_row = cosine + row % tokens * 64;
            const float* cosine_row_ = cosine + row % tokens * 64 + 32;
            const float* key_row = key + row * 64 + 32;
            const float* key_row_ = key + row * 64;
            float* add_0_out_row = add_0_out + row * 64;
            float* add_1__out_row = add_1__out + row * 64 + 32;
            float* add_1_0_out_row = add_1_0_out + row * 64;
            float* add_1_1_out_row = add_1_1_out + row * 64 + 32;
            alignas(64) float add_0_block[BLOCK];
            alignas(64) float add_1__block[BLOCK];
            alignas(64) float add_1_0_block[BLOCK];
            alignas(64) float add_1_1_block[BLOCK];
            #pragma omp simd
            for (int64_t i = 0; i < COLUMNS; ++i) {
                const float neg = -query_row[i];
                const float mul_1_0 = neg * sine_row[i];
                const float mul_1_1 = query_row_[i] * sine_row_[i];
                const float mul_0 = query_row_[i] * cosine_row[i];
                const float mul_1_ = query_row[i] * cosine_row_[i];
                const float add_0 = mul_0 + mul_1_0;
                const float add_1_ = mul_1_ + mul_1_1;
                const float neg_1 = -key_row[i];
                const float mul_3_0 = neg_1 * sine_row[i];
                const float mul_3_1 = key_row_[i] * sine_row_[i];
                const float mul_2_0 = key_row_[i] * cosine_row[i];
                const float mul_2_1 = key_row[i] * cosine_row_[i];
                const float add_1_0 = mul_2_0 + mul_3_0;
                const float add_1_1 = mul_2_1 + mul_3_1;
                add_0_block[i] = add_0;
                add_1__block[i] = add_1_;
                add_1_0_block[i] = add_1_0;
                add_1_1_block[i] = add_1_1;
            }
            stream_bytes(add_0_out_row, add_0_block, COLUMNS * sizeof(float));
            stream_bytes(add_1__out_row, add_1__block, COLUMNS * sizeof(float));
            stream_bytes(add_1_0_out_row, add_1_0_block, COLUMNS * sizeof(float));
            stream_bytes(add_1_1_out_row, add_1_1_block, COLUMNS * sizeof(float));
        }
        stream_fence();
    }
}
"""

lib = jit.compile_cpp(SOURCE)

QUERY_SHAPE = ("batch_size", 8, "tokens", 64)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, query, key, cosine, sine):
        query = checked("query", query, QUERY_SHAPE, torch.float32)
        batch_size, tokens = query.shape[0], query.shape[2]
        key = checked("key", key, (batch_size, 8, tokens, 64), torch.float32)
        cosine = checked("cosine", cosine, (tokens, 64), torch.float32)
        sine = checked("sine", sine, (tokens, 64), torch.float32)
        add = torch.empty((batch_size, 8, tokens, 64), dtype=torch.float32, device="cpu")
        add_1 = torch.empty((batch_size, 8, tokens, 64), dtype=torch.float32, device="cpu")
        lib.neg_mul_add(query, sine, cosine, key, add, add, add_1, add_1, batch_size, tokens)
        return add, add_1
