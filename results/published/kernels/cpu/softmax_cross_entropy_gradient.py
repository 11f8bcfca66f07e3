"""3 fused kernels in C++ with OpenMP, built for any n_rows.

- `sum_div`: ne, sum, convert, div, where
- `neg_kernel`: where, neg
- `logsumexp_rows`: amax, sub, exp_nonpositive, sum, log, eq, where, exp, mul

Left to torch: arange.
Schedule: fuse=all, vector=256, unroll=off; each kernel names its own.
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
#include <limits>
#include <immintrin.h>

static inline int64_t where_i64(bool condition, int64_t a, int64_t b) { return condition ? a : b; }

static inline float where_f32(bool condition, float a, float b) { return condition ? a : b; }

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

// Natural logarithm within 1.0 ulp.
static inline float log_f32(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 8388608.0f : x;
    const int32_t offset = bits_of(scaled) - 0x3f3504f3;  // sqrt(1/2)
    const int32_t exponent = offset >> 23;
    const float m = float_of((offset & 0x007fffff) + 0x3f3504f3) - 1.0f;
    const float n = static_cast<float>(exponent - (tiny ? 23 : 0));
    const float m2 = m * m;
    const float high = std::fma(std::fma(-1.1514610310e-1f, m, 1.1676998740e-1f), m2,
                                std::fma(-1.2420140846e-1f, m, 1.4249322787e-1f));
    const float low = std::fma(std::fma(-1.6668057665e-1f, m, 2.0000714765e-1f), m2,
                               std::fma(-2.4999993993e-1f, m, 3.3333331174e-1f));
    const float m4 = m2 * m2;
    const float p = std::fma(std::fma(7.0376836292e-2f, m4, high), m4, low);
    float y = p * m * m2;
    y = std::fma(n, -2.12194440e-4f, y);
    y = std::fma(-0.5f * m, m, y);
    y = std::fma(n, 0.693359375f, m + y);
    y = x == std::numeric_limits<float>::infinity() ? x : y;
    y = x == 0.0f ? -std::numeric_limits<float>::infinity() : y;
    return x >= 0.0f ? y : std::numeric_limits<float>::quiet_NaN();
}

// 2^n for -126 <= n <= 127.
static inline float power_of_two(int32_t n) { return float_of((n + 127) << 23); }

// e^x within 1.1 ulp: x = n ln 2 + r, a polynomial in r, and 2^n in two factors because the result may be
// a denormal. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. Zero is multiplied, not
// rounded to: a product that underflows takes a hundred cycles.
static inline float exp_f32(float x) {
    const float clamped = std::fabs(x) > 104.0f ? std::copysign(104.0f, x) : x;
    const float shifted = std::fma(clamped, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = std::fma(n, -0.693359375f, clamped);
    r = std::fma(n, 2.12194440e-4f, r);
    const float r2 = r * r;
    const float high = std::fma(std::fma(1.9875691500e-4f, r, 1.3981999507e-3f), r2,
                                std::fma(8.3334519073e-3f, r, 4.1665795894e-2f));
    const float low = std::fma(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = std::fma(std::fma(high, r2, low), r2, r) + 1.0f;
    const int32_t whole = bits_of(shifted) - 0x4b400000;
    const int32_t half = whole >> 1;
    const float scale = power_of_two(half);
    return p * (x < -104.0f ? 0.0f : scale) * power_of_two(whole - half);
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

// n_rows elements in blocks; 1 pass over each.
// Schedule: block=256, prefetch=off.
extern "C" void sum_div(
    const int64_t* target,
    const float* grad_output,
    uint8_t* ne_2_out,
    float* div_1_out,
    int32_t* _to_copy_1_out,
    int64_t n_rows) {
    const float grad_output_value = grad_output[0];
    const int64_t NUMEL = n_rows;
    constexpr int64_t BLOCK = 256;
    const int64_t ROWS = (NUMEL + BLOCK - 1) / BLOCK;
    constexpr int64_t CHUNKS = 256;
    int64_t sum_2_parts[CHUNKS];
    #pragma omp parallel for schedule(static) if (n_rows >= 32768)
    for (int64_t chunk = 0; chunk < CHUNKS; ++chunk) {
        int64_t sum_2_part = 0;
        for (int64_t row = chunk * ROWS / CHUNKS; row < (chunk + 1) * ROWS / CHUNKS; ++row) {
            const int64_t first = row * BLOCK;
            const int64_t n = std::min(BLOCK, NUMEL - first);
            const int64_t* target_row = target + first;
            uint8_t* ne_2_out_row = ne_2_out + first;
            int32_t* _to_copy_1_out_row = _to_copy_1_out + first;
            int64_t sum_2_row = 0;
            #pragma omp simd reduction(+ : sum_2_row)
            for (int64_t i = 0; i < n; ++i) {
                const bool ne_2 = target_row[i] != -100;
                const int64_t where_2 = where_i64(ne_2, target_row[i], 0);
                const int32_t _to_copy_1 = static_cast<int32_t>(where_2);
                sum_2_row = sum_2_row + static_cast<int64_t>(ne_2);
                ne_2_out_row[i] = ne_2;
                _to_copy_1_out_row[i] = _to_copy_1;
            }
            sum_2_part = sum_2_part + sum_2_row;
        }
        sum_2_parts[chunk] = sum_2_part;
    }
    int64_t sum_2_total = sum_2_parts[0];
    for (int64_t chunk = 1; chunk < CHUNKS; ++chunk) sum_2_total = sum_2_total + sum_2_parts[chunk];
    const int64_t sum_2 = sum_2_total;
    const float _to_copy = static_cast<float>(sum_2);
    const float div_1 = grad_output_value / _to_copy;
    div_1_out[0] = div_1;
}

// n_rows elements in blocks; 1 pass over each.
// Schedule: block=256, streaming=off, prefetch=off.
extern "C" void neg_kernel(const uint8_t* ne_2, const float* div_1, float* neg_1_out, int64_t n_rows) {
    const float div_1_value = div_1[0];
    const int64_t NUMEL = n_rows;
    constexpr int64_t BLOCK = 256;
    const int64_t ROWS = (NUMEL + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) if (n_rows >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const int64_t n = std::min(BLOCK, NUMEL - first);
        const uint8_t* ne_2_row = ne_2 + first;
        float* neg_1_out_row = neg_1_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            const float where_3 = where_f32((ne_2_row[i] != 0), div_1_value, 0.0f);
            const float neg_1 = -where_3;
            neg_1_out_row[i] = neg_1;
        }
    }
}

// n_rows rows of 8192; 3 passes over each.
// Schedule: block=64, streaming=on, prefetch=on.
extern "C" void logsumexp_rows(
    const float* logits,
    const int32_t* arange,
    const int32_t* to_copy_1,
    const float* neg_1,
    float* sub_2_out,
    int64_t n_rows) {
    const int64_t ROWS = n_rows;
    constexpr int64_t COLUMNS = 8192;
    constexpr int64_t BLOCK = 64;
    #pragma omp parallel if (n_rows * 8192 >= 4681)
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < ROWS; ++row) {
            const float* logits_row = logits + row * COLUMNS;
            const int32_t to_copy_1_value = to_copy_1[row];
            const float neg_1_value = neg_1[row];
            float* sub_2_out_row = sub_2_out + row * COLUMNS;
            float amax = -INFINITY;
            int32_t amax_nan = 0;
            double sum_4_total = 0.0;
            for (int64_t start = 0; start < COLUMNS; start += BLOCK) {
                float sum_4 = 0.0f;
                #pragma omp simd reduction(max : amax) reduction(| : amax_nan) reduction(+ : sum_4)
                for (int64_t i = 0; i < BLOCK; ++i) {
                    const bool eq = arange[start + i] == to_copy_1_value;
                    const float where_4 = where_f32(eq, neg_1_value, 0.0f);
                    const float amax_value = logits_row[start + i];
                    amax = amax_value > amax ? amax_value : amax;
                    amax_nan |= amax_value != amax_value;
                    sum_4 = sum_4 + where_4;
                }
                sum_4_total += sum_4;
            }
            if (amax_nan) amax = NAN;
            const float sum_4 = static_cast<float>(sum_4_total);
            double sum_1_total = 0.0;
            for (int64_t start = 0; start < COLUMNS; start += BLOCK) {
                #pragma GCC unroll 1
                for (int64_t p = start; p < start + BLOCK; p += 16) {
                    __builtin_prefetch(logits_row + COLUMNS + p);
                }
                float sum_1 = 0.0f;
                #pragma omp simd reduction(+ : sum_1)
                for (int64_t i = 0; i < BLOCK; ++i) {
                    const float sub = logits_row[start + i] - amax;
                    const float exp = exp_nonpositive_f32(sub);
                    sum_1 = sum_1 + exp;
                }
                sum_1_total += sum_1;
            }
            const float sum_1 = static_cast<float>(sum_1_total);
            const float log = log_f32(sum_1);
            for (int64_t start = 0; start < COLUMNS; start += BLOCK) {
                alignas(64) float sub_2_block[BLOCK];
                #pragma omp simd
                for (int64_t i = 0; i < BLOCK; ++i) {
                    const float sub = logits_row[start + i] - amax;
                    const float sub_1 = sub - log;
                    const bool eq = arange[start + i] == to_copy_1_value;
                    const float where_4 = where_f32(eq, neg_1_value, 0.0f);
                    const float exp_1 = exp_f32(sub_1);
                    const float mul = exp_1 * sum_4;
                    const float sub_2 = where_4 - mul;
                    sub_2_block[i] = sub_2;
                }
                stream_bytes(sub_2_out_row + start, sub_2_block, BLOCK * sizeof(float));
            }
        }
        stream_fence();
    }
}
"""

lib = jit.compile_cpp(SOURCE)

GRAD_OUTPUT_SHAPE = ()
LOGITS_SHAPE = ("n_rows", 8192)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, grad_output, logits, target):
        grad_output = checked("grad_output", grad_output, GRAD_OUTPUT_SHAPE, torch.float32)
        logits = checked("logits", logits, LOGITS_SHAPE, torch.float32)
        n_rows = logits.shape[0]
        target = checked("target", target, (n_rows,), torch.int64)
        arange = torch.ops.aten.arange.start_step(0, 8192, dtype=torch.int32, device="cpu")
        ne_2 = torch.empty((n_rows,), dtype=torch.bool, device="cpu")
        div_1 = torch.empty((), dtype=torch.float32, device="cpu")
        _to_copy_1 = torch.empty((n_rows,), dtype=torch.int32, device="cpu")
        lib.sum_div(target, grad_output, ne_2, div_1, _to_copy_1, n_rows)
        neg_1 = torch.empty((n_rows, 1), dtype=torch.float32, device="cpu")
        lib.neg_kernel(ne_2, div_1, neg_1, n_rows)
        sub_2 = torch.empty((n_rows, 8192), dtype=torch.float32, device="cpu")
        lib.logsumexp_rows(logits, arange, _to_copy_1, neg_1, sub_2, n_rows)
        return sub_2,
