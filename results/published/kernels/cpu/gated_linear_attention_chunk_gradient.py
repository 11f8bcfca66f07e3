"""13 fused kernels in C++ with OpenMP, built for any batch_size.

- `sub_kernel`: sub, le
- `cumsum_exp_rows`: cumsum, exp
- `sub_exp`: sub, exp
- `mul_sum_rows`: mul, sum
- `exp_mul_sum_add_rows`: exp, mul, sum, add
- `sub_exp_mul_neg_rows`: sub, where, exp, mul, neg, sum
- `add_kernel`: add
- `mul_add`: copy, mul, add
- `mul_sum_neg_add_rows`: mul, sum, neg, add
- `sum_rows`: sum
- `add_sum_rows`: add, sum
- `cumsum_rows`: cumsum
- `copy_kernel`: copy

Left to torch: arange, contiguous, bmm, cat.
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

static inline int32_t bits_of(float x) {
    int32_t i;
    std::memcpy(&i, &x, sizeof i);
    return i;
}

static inline float float_of(int32_t i) {
    float x;
    std::memcpy(&x, &i, sizeof x);
    return x;
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

static inline float where_f32(bool condition, float a, float b) { return condition ? a : b; }

// Writes the transpose of 16 by 16 elements of four bytes; strides are in elements.
static inline void turn_16x16(const void* from, int64_t from_stride, void* to, int64_t to_stride) {
#if defined(__AVX512F__)
    const float* x = static_cast<const float*>(from);
    float* y = static_cast<float*>(to);
    __m512 r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(x + i * from_stride);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; ++k) {
            const __m512d a = _mm512_castps_pd(t[i + k]), b = _mm512_castps_pd(t[i + k + 2]);
            r[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 16; i += 8)
        for (int k = 0; k < 4; ++k) {
            t[i + k] = _mm512_shuffle_f32x4(r[i + k], r[i + k + 4], 0x88);
            t[i + k + 4] = _mm512_shuffle_f32x4(r[i + k], r[i + k + 4], 0xdd);
        }
    for (int k = 0; k < 8; ++k) {
        _mm512_storeu_ps(y + k * to_stride, _mm512_shuffle_f32x4(t[k], t[k + 8], 0x88));
        _mm512_storeu_ps(y + (k + 8) * to_stride, _mm512_shuffle_f32x4(t[k], t[k + 8], 0xdd));
    }
#else
    const char* x = static_cast<const char*>(from);
    char* y = static_cast<char*>(to);
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 16; ++k) std::memcpy(y + 4 * (k * to_stride + i), x + 4 * (i * from_stride + k), 4);
#endif
}

// Copies `columns` rows of `rows` elements, `stride` apart, into `rows` rows that are `width` apart.
static inline void turn_f32(const float* x, int64_t stride, float* y, int64_t width, int64_t rows, int64_t columns) {
    const bool whole = sizeof(float) == 4;
    const int64_t down = whole ? rows / 16 * 16 : 0, along = whole ? columns / 16 * 16 : 0;
    for (int64_t j = 0; j < down; j += 16)
        for (int64_t i = 0; i < along; i += 16) turn_16x16(x + i * stride + j, stride, y + j * width + i, width);
    for (int64_t i = 0; i < columns; ++i)
        for (int64_t j = i < along ? down : 0; j < rows; ++j) y[j * width + i] = x[i * stride + j];
}

// 64 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void sub_kernel(const int64_t* arange, uint8_t* le_out) {
    constexpr int64_t ROWS = 64, COLUMNS = 64;
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t arange_value = arange[row];
        uint8_t* le_out_row = le_out + row * COLUMNS;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const int64_t sub_1 = arange[i] - arange_value;
            const bool le = sub_1 <= 0;
            le_out_row[i] = le;
        }
    }
}

// batch_size * 4 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void cumsum_exp_rows(const float* gate, float* cumsum_out, float* exp_1_out, int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 256 >= 10922)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* gate_row = gate + row * COLUMNS;
        float* cumsum_out_row = cumsum_out + row * COLUMNS;
        float* exp_1_out_row = exp_1_out + row * COLUMNS;
        double cumsum_running = 0.0;
        #pragma omp simd reduction(inscan, + : cumsum_running)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            cumsum_running = cumsum_running + static_cast<double>(gate_row[i]);
            #pragma omp scan inclusive(cumsum_running)
            const float cumsum = static_cast<float>(cumsum_running);
            const float exp_1 = exp_f32(cumsum);
            cumsum_out_row[i] = cumsum;
            exp_1_out_row[i] = exp_1;
        }
    }
}

// batch_size * 4 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void sub_exp(
    const float* cumsum_contiguous,
    const float* cumsum,
    float* exp_2_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 256 >= 10922)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float cumsum_contiguous_value = cumsum_contiguous[row];
        const float* cumsum_row = cumsum + row * COLUMNS;
        float* exp_2_out_row = exp_2_out + row * COLUMNS;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float sub_3 = cumsum_contiguous_value - cumsum_row[i];
            const float exp_2 = exp_f32(sub_3);
            exp_2_out_row[i] = exp_2;
        }
    }
}

// batch_size * 256 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_sum_rows(
    const float* grad_output_0,
    const float* exp_1,
    const float* saved_1,
    float* mul_8_out,
    float* mul_10_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 256;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* grad_output_0_row = grad_output_0 + row * COLUMNS;
        const float exp_1_value = exp_1[row];
        const float* saved_1_row = saved_1 + row * COLUMNS;
        float* mul_8_out_row = mul_8_out + row * COLUMNS;
        float sum_4 = 0.0f;
        #pragma omp simd reduction(+ : sum_4)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float mul_8 = grad_output_0_row[i] * exp_1_value;
            const float mul_9 = grad_output_0_row[i] * saved_1_row[i];
            sum_4 = sum_4 + mul_9;
            mul_8_out_row[i] = mul_8;
        }
        const float mul_10 = sum_4 * exp_1_value;
        mul_10_out[row] = mul_10;
    }
}

// batch_size * 4 rows of 4096; 1 pass over each.
// Schedule: block=4096, streaming=off, prefetch=on.
extern "C" void exp_mul_sum_add_rows(
    const float* cumsum_contiguous,
    const float* grad_output_1,
    const float* state,
    const float* bmm_2,
    float* mul_6_out,
    float* add_2_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 4096;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float cumsum_contiguous_value = cumsum_contiguous[row];
        const float* grad_output_1_row = grad_output_1 + row * COLUMNS;
        const float* state_row = state + row * COLUMNS;
        const float* bmm_2_row = bmm_2 + row * COLUMNS;
        float* add_2_out_row = add_2_out + row * COLUMNS;
        const float exp_3 = exp_f32(cumsum_contiguous_value);
        double sum_2_total = 0.0;
        for (int64_t start = 0; start < COLUMNS; start += 256) {
            #pragma GCC unroll 1
            for (int64_t p = start; p < start + 256; p += 16) {
                __builtin_prefetch(grad_output_1_row + COLUMNS + p);
                __builtin_prefetch(state_row + COLUMNS + p);
                __builtin_prefetch(bmm_2_row + COLUMNS + p);
                __builtin_prefetch(add_2_out_row + p, 1);
            }
            float sum_2 = 0.0f;
            #pragma omp simd reduction(+ : sum_2)
            for (int64_t i = 0; i < 256; ++i) {
                const float mul_4 = grad_output_1_row[start + i] * exp_3;
                const float mul_5 = grad_output_1_row[start + i] * state_row[start + i];
                const float add_2 = mul_4 + bmm_2_row[start + i];
                sum_2 = sum_2 + mul_5;
                add_2_out_row[start + i] = add_2;
            }
            sum_2_total += sum_2;
        }
        const float sum_2 = static_cast<float>(sum_2_total);
        const float mul_6 = sum_2 * exp_3;
        mul_6_out[row] = mul_6;
    }
}

// batch_size * 256 columns of 64, neighbours side by side; 1 pass over each.
// Schedule: streaming=off.
extern "C" void sub_exp_mul_neg_rows(
    const float* cumsum,
    const uint8_t* le,
    const float* saved_0,
    const float* bmm_5,
    float* mul_out,
    float* mul_12_out,
    float* where_3_out,
    float* sum_6_out,
    int64_t batch_size) {
    constexpr int64_t WIDTH = 64, BLOCK = 64;
    constexpr int64_t BLOCKS = (WIDTH + BLOCK - 1) / BLOCK;
    const int64_t ROWS = (batch_size * 4) * BLOCKS;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 6553)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t outer = row / BLOCKS;
        const int64_t first = row % BLOCKS * BLOCK;
        const int64_t n = std::min(BLOCK, WIDTH - first);
        const float* cumsum_row = cumsum + outer * 64;
        const float* cumsum_row_ = cumsum + outer * 64 + first;
        const uint8_t* le_row = le + first;
        const float* saved_0_row = saved_0 + outer * 4096 + first;
        const float* bmm_5_row = bmm_5 + outer * 4096 + first;
        float* mul_out_row = mul_out + outer * 4096 + first;
        float* mul_12_out_row = mul_12_out + outer * 4096 + first;
        float* where_3_out_row = where_3_out + outer * 4096 + first;
        float* sum_6_out_row = sum_6_out + outer * 64 + first;
        alignas(64) float sum_6[BLOCK];
        for (int64_t i = 0; i < n; ++i) sum_6[i] = 0.0f;
        for (int64_t j = 0; j < 64; ++j) {
            const float cumsum_row_j = cumsum_row[j];
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
                const float sub = cumsum_row_j - cumsum_row_[i];
                const float where = where_f32((le_row[j * 64 + i] != 0), sub, 0.0f);
                const float exp = exp_f32(where);
                const float where_1 = where_f32((le_row[j * 64 + i] != 0), exp, 0.0f);
                const float mul = saved_0_row[j * 64 + i] * where_1;
                const float mul_11 = bmm_5_row[j * 64 + i] * saved_0_row[j * 64 + i];
                const float mul_12 = bmm_5_row[j * 64 + i] * where_1;
                const float where_2 = where_f32((le_row[j * 64 + i] != 0), mul_11, 0.0f);
                const float mul_13 = where_2 * exp;
                const float where_3 = where_f32((le_row[j * 64 + i] != 0), mul_13, 0.0f);
                const float neg_1 = -where_3;
                sum_6[i] = sum_6[i] + neg_1;
                mul_out_row[j * 64 + i] = mul;
                mul_12_out_row[j * 64 + i] = mul_12;
                where_3_out_row[j * 64 + i] = where_3;
            }
        }
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            sum_6_out_row[i] = sum_6[i];
        }
    }
}

// batch_size * 16384 elements in blocks; 1 pass over each.
// Schedule: block=256, streaming=off, prefetch=off.
extern "C" void add_kernel(const float* bmm_3, const float* bmm_7, float* add_5_out, int64_t batch_size) {
    const int64_t NUMEL = batch_size * 16384;
    constexpr int64_t BLOCK = 256;
    const int64_t ROWS = NUMEL / BLOCK;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const float* bmm_3_row = bmm_3 + first;
        const float* bmm_7_row = bmm_7 + first;
        float* add_5_out_row = add_5_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < BLOCK; ++i) {
            const float add_5 = bmm_3_row[i] + bmm_7_row[i];
            add_5_out_row[i] = add_5;
        }
    }
}

// batch_size * 16384 elements in tiles, in which axes change places; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_add(
    const float* bmm_1,
    const float* exp_2,
    const float* bmm_6,
    float* bmm_1_contiguous_out,
    float* add_6_out,
    int64_t batch_size) {
    constexpr int64_t ROWS = 64, COLUMNS = 64, TILE = 64, BLOCK = 64;
    constexpr int64_t DOWN = (ROWS + TILE - 1) / TILE, ALONG = (COLUMNS + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t tile = 0; tile < (batch_size * 4) * DOWN * ALONG; ++tile) {
        const int64_t outer = tile / (DOWN * ALONG);
        const int64_t first = tile / DOWN % ALONG * BLOCK, top = tile % DOWN * TILE;
        const float* bmm_1_corner = bmm_1 + outer * 4096 + top + first * 64;
        alignas(64) float bmm_1_tile[TILE * BLOCK];
        turn_f32(bmm_1_corner, 64, bmm_1_tile, BLOCK, TILE, BLOCK);
        const float* bmm_6_corner = bmm_6 + outer * 4096 + top + first * 64;
        alignas(64) float bmm_6_tile[TILE * BLOCK];
        turn_f32(bmm_6_corner, 64, bmm_6_tile, BLOCK, TILE, BLOCK);
        for (int64_t j = 0; j < TILE; ++j) {
            const float exp_2_value = exp_2[outer * 64 + top + j];
            float* bmm_1_contiguous_out_row = bmm_1_contiguous_out + outer * 4096 + top * 64 + first + j * 64;
            float* add_6_out_row = add_6_out + outer * 4096 + top * 64 + first + j * 64;
            #pragma omp simd
            for (int64_t i = 0; i < BLOCK; ++i) {
                const float bmm_1_contiguous = bmm_1_tile[j * BLOCK + i];
                const float mul_2 = bmm_1_contiguous * exp_2_value;
                const float bmm_6_contiguous = bmm_6_tile[j * BLOCK + i];
                const float add_6 = mul_2 + bmm_6_contiguous;
                bmm_1_contiguous_out_row[i] = bmm_1_contiguous;
                add_6_out_row[i] = add_6;
            }
        }
    }
}

// batch_size * 256 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_sum_neg_add_rows(
    const float* exp_2,
    const float* key,
    const float* bmm_1_contiguous,
    const float* cat,
    float* mul_1_out,
    float* mul_7_out,
    float* add_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 256;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float exp_2_value = exp_2[row];
        const float* key_row = key + row * COLUMNS;
        const float* bmm_1_contiguous_row = bmm_1_contiguous + row * COLUMNS;
        const float cat_value = cat[row];
        float* mul_1_out_row = mul_1_out + row * COLUMNS;
        float sum_1 = 0.0f;
        #pragma omp simd reduction(+ : sum_1)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float mul_1 = exp_2_value * key_row[i];
            const float mul_3 = bmm_1_contiguous_row[i] * key_row[i];
            sum_1 = sum_1 + mul_3;
            mul_1_out_row[i] = mul_1;
        }
        const float mul_7 = sum_1 * exp_2_value;
        const float neg = -mul_7;
        const float add = cat_value + neg;
        mul_7_out[row] = mul_7;
        add_out[row] = add;
    }
}

// batch_size * 4 rows of 64; 1 pass over each.
extern "C" void sum_rows(const float* mul_7, float* sum_3_out, int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 256 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* mul_7_row = mul_7 + row * COLUMNS;
        float sum_3 = 0.0f;
        #pragma omp simd reduction(+ : sum_3)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            sum_3 = sum_3 + mul_7_row[i];
        }
        sum_3_out[row] = sum_3;
    }
}

// batch_size * 256 rows of 64; 1 pass over each.
extern "C" void add_sum_rows(
    const float* add,
    const float* cat_1,
    const float* mul_10,
    const float* where_3,
    const float* sum_6,
    float* add_8_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 256;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float add_value = add[row];
        const float cat_1_value = cat_1[row];
        const float mul_10_value = mul_10[row];
        const float* where_3_row = where_3 + row * COLUMNS;
        const float sum_6_value = sum_6[row];
        const float add_1 = add_value + cat_1_value;
        const float add_3 = add_1 + mul_10_value;
        const float add_7 = add_3 + sum_6_value;
        float sum_5 = 0.0f;
        #pragma omp simd reduction(+ : sum_5)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            sum_5 = sum_5 + where_3_row[i];
        }
        const float add_8 = add_7 + sum_5;
        add_8_out[row] = add_8;
    }
}

// batch_size * 4 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void cumsum_rows(const float* add_8, float* cumsum_1_out, int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 256 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* add_8_row = add_8 + row * COLUMNS + 63;
        float* cumsum_1_out_row = cumsum_1_out + row * COLUMNS;
        double cumsum_1_running = 0.0;
        #pragma omp simd reduction(inscan, + : cumsum_1_running)
        for (int64_t i = 0; i < COLUMNS; ++i) {
            cumsum_1_running = cumsum_1_running + static_cast<double>(add_8_row[i * -1]);
            #pragma omp scan inclusive(cumsum_1_running)
            const float cumsum_1 = static_cast<float>(cumsum_1_running);
            cumsum_1_out_row[i] = cumsum_1;
        }
    }
}

// batch_size * 4 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void copy_kernel(const float* cumsum_1, float* cumsum_1_contiguous_out, int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 256 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* cumsum_1_row = cumsum_1 + row * COLUMNS + 63;
        float* cumsum_1_contiguous_out_row = cumsum_1_contiguous_out + row * COLUMNS;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float cumsum_1_contiguous = cumsum_1_row[i * -1];
            cumsum_1_contiguous_out_row[i] = cumsum_1_contiguous;
        }
    }
}
"""

lib = jit.compile_cpp(SOURCE)

GRAD_OUTPUT_0_SHAPE = ("batch_size", 4, 64, 64)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, grad_output_0, grad_output_1, query, key, value, gate, state, saved_0, saved_1):
        grad_output_0 = checked("grad_output_0", grad_output_0, GRAD_OUTPUT_0_SHAPE, torch.float32)
        batch_size = grad_output_0.shape[0]
        grad_output_1 = checked("grad_output_1", grad_output_1, (batch_size, 4, 64, 64), torch.float32)
        query = checked("query", query, (batch_size, 4, 64, 64), torch.float32)
        key = checked("key", key, (batch_size, 4, 64, 64), torch.float32)
        value = checked("value", value, (batch_size, 4, 64, 64), torch.float32)
        gate = checked("gate", gate, (batch_size, 4, 64), torch.float32)
        state = checked("state", state, (batch_size, 4, 64, 64), torch.float32)
        saved_0 = checked("saved_0", saved_0, (batch_size * 4, 64, 64), torch.float32)
        saved_1 = checked("saved_1", saved_1, (batch_size * 4, 64, 64), torch.float32)
        arange = torch.ops.aten.arange.start_step(0, 64, dtype=torch.int64, device="cpu")
        le = torch.empty((64, 64), dtype=torch.bool, device="cpu")
        lib.sub_kernel(arange, le)
        cumsum = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        exp_1 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.cumsum_exp_rows(gate, cumsum, exp_1, batch_size)
        slice_1 = torch.ops.aten.slice.Tensor(cumsum, 2, -1, 9223372036854775807)
        cumsum_contiguous = slice_1.contiguous()
        exp_2 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.sub_exp(cumsum_contiguous, cumsum, exp_2, batch_size)
        select = cumsum.select(2, -1)
        cumsum_contiguous_ = select.contiguous()
        view_10 = grad_output_1.reshape(batch_size * 4, 64, 64)
        expand_3 = value.expand([batch_size, 4, 64, 64])
        view_4 = expand_3.reshape(batch_size * 4, 64, 64)
        permute_3 = view_4.permute(0, 2, 1)
        bmm_1 = torch.bmm(view_10, permute_3)
        mul_8 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        mul_10 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.mul_sum_rows(grad_output_0, exp_1, saved_1, mul_8, mul_10, batch_size)
        expand = query.expand([batch_size, 4, 64, 64])
        view = expand.reshape(batch_size * 4, 64, 64)
        permute_5 = view.permute(0, 2, 1)
        view_13 = mul_8.view((batch_size * 4, 64, 64))
        bmm_2 = torch.bmm(permute_5, view_13)
        expand_5 = state.expand([batch_size, 4, 64, 64])
        view_6 = expand_5.reshape(batch_size * 4, 64, 64)
        permute_6 = view_6.permute(0, 2, 1)
        bmm_3 = torch.bmm(view_13, permute_6)
        mul_6 = torch.empty((batch_size, 4), dtype=torch.float32, device="cpu")
        add_2 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.exp_mul_sum_add_rows(cumsum_contiguous_, grad_output_1, state, bmm_2, mul_6, add_2, batch_size)
        full = torch.ops.aten.full.default([batch_size, 4, 63], 0.0, dtype=torch.float32, device="cpu")
        unsqueeze_10 = mul_6.view((batch_size, 4, 1))
        cat = torch.cat([full, unsqueeze_10], 2)
        view_16 = grad_output_0.reshape(batch_size * 4, 64, 64)
        bmm_5 = torch.bmm(view_16, permute_3)
        mul = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        mul_12 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        where_3 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        sum_6 = torch.empty((batch_size, 4, 1, 64), dtype=torch.float32, device="cpu")
        lib.sub_exp_mul_neg_rows(cumsum, le, saved_0, bmm_5, mul, mul_12, where_3, sum_6, batch_size)
        view_3 = mul.view((batch_size * 4, 64, 64))
        permute_7 = view_3.permute(0, 2, 1)
        bmm_4 = torch.bmm(permute_7, view_16)
        view_19 = mul_12.view((batch_size * 4, 64, 64))
        bmm_6 = torch.bmm(permute_5, view_19)
        permute = key.permute(0, 1, 3, 2)
        expand_1 = permute.expand([batch_size, 4, 64, 64])
        view_1 = expand_1.reshape(batch_size * 4, 64, 64)
        permute_10 = view_1.permute(0, 2, 1)
        bmm_7 = torch.bmm(view_19, permute_10)
        add_5 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.add_kernel(bmm_3, bmm_7, add_5, batch_size)
        bmm_1_contiguous = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        add_6 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.mul_add(bmm_1, exp_2, bmm_6, bmm_1_contiguous, add_6, batch_size)
        mul_1 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        mul_7 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        add = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.mul_sum_neg_add_rows(exp_2, key, bmm_1_contiguous, cat, mul_1, mul_7, add, batch_size)
        permute_2 = mul_1.view((batch_size * 4, 64, 64))
        bmm = torch.bmm(permute_2, view_10)
        sum_3 = torch.empty((batch_size, 4, 1), dtype=torch.float32, device="cpu")
        lib.sum_rows(mul_7, sum_3, batch_size)
        cat_1 = torch.cat([full, sum_3], 2)
        add_4 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.add_kernel(bmm, bmm_4, add_4, batch_size)
        add_8 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.add_sum_rows(add, cat_1, mul_10, where_3, sum_6, add_8, batch_size)
        cumsum_1 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.cumsum_rows(add_8, cumsum_1, batch_size)
        cumsum_1_contiguous = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.copy_kernel(cumsum_1, cumsum_1_contiguous, batch_size)
        return add_5, add_6, add_4, cumsum_1_contiguous, add_2
