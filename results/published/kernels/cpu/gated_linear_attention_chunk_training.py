"""8 fused kernels in C++ with OpenMP, built for any batch_size.

- `sub_kernel`: sub, le
- `cumsum_exp_rows`: cumsum, exp
- `sub_exp_mul`: sub, where, exp, mul
- `sub_exp`: sub, exp
- `exp_kernel`: exp
- `mul_kernel`: mul
- `mul_add`: mul, add
- `mul_add_2`: mul, add

Left to torch: arange, bmm, contiguous.
Schedule: vector=512, unroll=off; each kernel names its own.
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

// batch_size * 256 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void sub_exp_mul(
    const float* cumsum,
    const uint8_t* le,
    const float* bmm,
    float* mul_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 256;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 8192)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float cumsum_value = cumsum[row];
        const float* cumsum_row = cumsum + row / 64 * 64;
        const uint8_t* le_row = le + row % 64 * 64;
        const float* bmm_row = bmm + row * COLUMNS;
        float* mul_out_row = mul_out + row * COLUMNS;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float sub = cumsum_value - cumsum_row[i];
            const float where = where_f32((le_row[i] != 0), sub, 0.0f);
            const float exp = exp_f32(where);
            const float where_1 = where_f32((le_row[i] != 0), exp, 0.0f);
            const float mul = bmm_row[i] * where_1;
            mul_out_row[i] = mul;
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

// batch_size * 4 elements in blocks; 1 pass over each.
// Schedule: in_place=on, block=256, prefetch=off.
extern "C" void exp_kernel(const float* cumsum_contiguous, float* exp_3_out, int64_t batch_size) {
    const int64_t NUMEL = batch_size * 4;
    constexpr int64_t BLOCK = 256;
    const int64_t ROWS = (NUMEL + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) if (batch_size * 4 >= 10922)
    for (int64_t row = 0; row < ROWS; ++row) {
        const int64_t first = row * BLOCK;
        const int64_t n = std::min(BLOCK, NUMEL - first);
        const float* cumsum_contiguous_row = cumsum_contiguous + first;
        float* exp_3_out_row = exp_3_out + first;
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            const float exp_3 = exp_f32(cumsum_contiguous_row[i]);
            exp_3_out_row[i] = exp_3;
        }
    }
}

// batch_size * 256 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_kernel(const float* exp_2, const float* key, float* mul_3_out, int64_t batch_size) {
    const int64_t ROWS = batch_size * 256;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float exp_2_value = exp_2[row];
        const float* key_row = key + row * COLUMNS;
        float* mul_3_out_row = mul_3_out + row * COLUMNS;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float mul_3 = exp_2_value * key_row[i];
            mul_3_out_row[i] = mul_3;
        }
    }
}

// batch_size * 4 rows of 4096; 1 pass over each.
// Schedule: block=4096, streaming=off, prefetch=on.
extern "C" void mul_add(
    const float* cumsum_contiguous,
    const float* state,
    const float* bmm_3,
    float* add_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 4;
    constexpr int64_t COLUMNS = 4096;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float cumsum_contiguous_value = cumsum_contiguous[row];
        const float* state_row = state + row * COLUMNS;
        const float* bmm_3_row = bmm_3 + row * COLUMNS;
        float* add_out_row = add_out + row * COLUMNS;
        for (int64_t start = 0; start < COLUMNS; start += 256) {
            #pragma GCC unroll 1
            for (int64_t p = start; p < start + 256; p += 16) {
                __builtin_prefetch(state_row + COLUMNS + p);
                __builtin_prefetch(bmm_3_row + COLUMNS + p);
                __builtin_prefetch(add_out_row + p, 1);
            }
            #pragma omp simd
            for (int64_t i = 0; i < 256; ++i) {
                const float mul_2 = cumsum_contiguous_value * state_row[start + i];
                const float add = mul_2 + bmm_3_row[start + i];
                add_out_row[start + i] = add;
            }
        }
    }
}

// batch_size * 256 rows of 64; 1 pass over each.
// Schedule: streaming=off.
extern "C" void mul_add_2(
    const float* exp_1,
    const float* bmm_2,
    const float* bmm_1,
    float* add_1_out,
    int64_t batch_size) {
    const int64_t ROWS = batch_size * 256;
    constexpr int64_t COLUMNS = 64;
    #pragma omp parallel for schedule(static) if (batch_size * 16384 >= 32768)
    for (int64_t row = 0; row < ROWS; ++row) {
        const float exp_1_value = exp_1[row];
        const float* bmm_2_row = bmm_2 + row * COLUMNS;
        const float* bmm_1_row = bmm_1 + row * COLUMNS;
        float* add_1_out_row = add_1_out + row * COLUMNS;
        #pragma omp simd
        for (int64_t i = 0; i < COLUMNS; ++i) {
            const float mul_1 = exp_1_value * bmm_2_row[i];
            const float add_1 = bmm_1_row[i] + mul_1;
            add_1_out_row[i] = add_1;
        }
    }
}
"""

lib = jit.compile_cpp(SOURCE)

QUERY_SHAPE = ("batch_size", 4, 64, 64)


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | str, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; the kernels are built for one dtype, and for any size that only has a name."""
    wanted = tuple(size if isinstance(n, str) else n for n, size in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or tensor.shape != wanted or tensor.dtype != dtype:
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must be {dtype} of shape {shape}, got {found}")
    return tensor.contiguous()


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, query, key, value, gate, state):
        query = checked("query", query, QUERY_SHAPE, torch.float32)
        batch_size = query.shape[0]
        key = checked("key", key, (batch_size, 4, 64, 64), torch.float32)
        value = checked("value", value, (batch_size, 4, 64, 64), torch.float32)
        gate = checked("gate", gate, (batch_size, 4, 64), torch.float32)
        state = checked("state", state, (batch_size, 4, 64, 64), torch.float32)
        arange = torch.ops.aten.arange.start_step(0, 64, dtype=torch.int64, device="cpu")
        le = torch.empty((64, 64), dtype=torch.bool, device="cpu")
        lib.sub_kernel(arange, le)
        expand = query.expand([batch_size, 4, 64, 64])
        view = expand.reshape(batch_size * 4, 64, 64)
        permute = key.permute(0, 1, 3, 2)
        expand_1 = permute.expand([batch_size, 4, 64, 64])
        view_1 = expand_1.reshape(batch_size * 4, 64, 64)
        bmm = torch.bmm(view, view_1)
        cumsum = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        exp_1 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.cumsum_exp_rows(gate, cumsum, exp_1, batch_size)
        mul = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.sub_exp_mul(cumsum, le, bmm, mul, batch_size)
        view_3 = mul.view((batch_size * 4, 64, 64))
        expand_3 = value.expand([batch_size, 4, 64, 64])
        view_4 = expand_3.reshape(batch_size * 4, 64, 64)
        bmm_1 = torch.bmm(view_3, view_4)
        expand_5 = state.expand([batch_size, 4, 64, 64])
        view_7 = expand_5.reshape(batch_size * 4, 64, 64)
        bmm_2 = torch.bmm(view, view_7)
        slice_1 = torch.ops.aten.slice.Tensor(cumsum, 2, -1, 9223372036854775807)
        cumsum_contiguous = slice_1.contiguous()
        exp_2 = torch.empty((batch_size, 4, 64), dtype=torch.float32, device="cpu")
        lib.sub_exp(cumsum_contiguous, cumsum, exp_2, batch_size)
        select = cumsum.select(2, -1)
        cumsum_contiguous_ = select.contiguous()
        lib.exp_kernel(cumsum_contiguous_, cumsum_contiguous_, batch_size)
        mul_3 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.mul_kernel(exp_2, key, mul_3, batch_size)
        permute_1 = mul_3.permute(0, 1, 3, 2)
        expand_6 = permute_1.expand([batch_size, 4, 64, 64])
        view_9 = expand_6.reshape(batch_size * 4, 64, 64)
        bmm_3 = torch.bmm(view_9, view_4)
        add = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.mul_add(cumsum_contiguous_, state, bmm_3, add, batch_size)
        add_1 = torch.empty((batch_size, 4, 64, 64), dtype=torch.float32, device="cpu")
        lib.mul_add_2(exp_1, bmm_2, bmm_1, add_1, batch_size)
        return add_1, add, bmm, bmm_2
