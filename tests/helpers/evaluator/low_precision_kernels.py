"""Kernels in eight and four bits as people write them by hand: for each task one in C++, for some one in Triton.

`WRONG`: faults of such kernels, each as what of the text is replaced by what.
"""

SMALLER = {"tokens": 32, "in_features": 512, "out_features": 256, "places": 64, "heads": 2}
_CPP = '''
from kernelwright import jit

lib = jit.compile_cpp(r"""
#include "kernelwright/math.h"
using namespace kw;
{body}
""")


class ModelNew(Model):
    def forward(self, {arguments}):
{forward}
'''
_TRITON = """
import triton
import triton.language as tl


@triton.jit
{body}

class ModelNew(Model):
    def forward(self, {arguments}):
{forward}
"""


def _file(form: str, arguments: str, forward: str, body: str) -> str:
    lines = "\n".join(f"        {line}" for line in forward.strip().splitlines())
    return form.format(arguments=arguments, forward=lines, body=body.strip() + "\n")


KERNELS = {
    ("linear_w8a8_int8", "cpp"): _file(
        _CPP,
        "x, x_scale",
        """
y = torch.empty(len(x), len(self.weight))
lib.product(x, self.weight, x_scale, self.scale, self.bias, y, len(x), x.shape[1], len(self.weight))
return y""",
        """
extern "C" void product(const int8_t* x, const int8_t* w, const float* xs, const float* ws, const float* bias,
                        float* y, long rows, long inner, long columns) {
    #pragma omp parallel for
    for (long r = 0; r < rows; ++r)
        for (long c = 0; c < columns; ++c) {
            int32_t sum = 0;
            for (long k = 0; k < inner; ++k) {
                const int32_t next = sum + int32_t(x[r * inner + k]) * w[c * inner + k];
                sum = next;
            }
            y[r * columns + c] = float(sum) * xs[r] * ws[c] + bias[c];
        }
}""",
    ),
    ("linear_w4a16_groups", "cpp"): _file(
        _CPP,
        "x",
        """
y = torch.empty(len(x), len(self.packed), dtype=torch.bfloat16)
lib.product(x, self.packed, self.scale.detach(), y, len(x), x.shape[1], len(self.packed), self.group)
return y""",
        """
extern "C" void product(const uint16_t* x, const uint8_t* packed, const uint16_t* scale, uint16_t* y,
                        long rows, long inner, long columns, long group) {
    #pragma omp parallel for
    for (long r = 0; r < rows; ++r)
        for (long c = 0; c < columns; ++c) {
            float sum = 0;
            for (long k = 0; k < inner; k += 2) {
                const uint8_t both = packed[(c * inner + k) / 2];
                const long at = k / group;
                const float s = bfloat16_load(scale[c * (inner / group) + at]);
                sum += bfloat16_load(x[r * inner + k]) * (float((both & 15) - 8) * s);
                sum += bfloat16_load(x[r * inner + k + 1]) * (float((both >> 4) - 8) * s);
            }
            y[r * columns + c] = bfloat16_store(sum);
        }
}""",
    ),
    ("linear_fp8_blocks", "cpp"): _file(
        _CPP,
        "x, x_scale",
        """
y = torch.empty(len(x), len(self.weight), dtype=torch.bfloat16)
lib.product(x, self.weight, x_scale, self.scale.detach(), y, len(x), x.shape[1], len(self.weight), self.block)
return y""",
        """
extern "C" void product(const uint8_t* x, const uint8_t* w, const float* xs, const float* ws, uint16_t* y,
                        long rows, long inner, long columns, long block) {
    const long blocks = inner / block;
    #pragma omp parallel for
    for (long r = 0; r < rows; ++r)
        for (long c = 0; c < columns; ++c) {
            float sum = 0;
            for (long b = 0; b < blocks; ++b) {
                float part = 0;
                for (long k = b * block; k < (b + 1) * block; ++k)
                    part += float8_e4m3fn_load(x[r * inner + k]) * float8_e4m3fn_load(w[c * inner + k]);
                sum += part * xs[r * blocks + b] * ws[c / block * blocks + b];
            }
            y[r * columns + c] = bfloat16_store(sum);
        }
}""",
    ),
    ("kv_cache_append_int8", "cpp"): _file(
        _CPP,
        "keys, cache, scales, at",
        """
cache, scales = cache.clone(), scales.clone()
lib.append(keys, at, cache, scales, keys.shape[0], keys.shape[1], keys.shape[2])
return cache, scales""",
        """
extern "C" void append(const uint16_t* keys, const int64_t* at, int8_t* cache, float* scales,
                       long tokens, long heads, long size) {
    #pragma omp parallel for
    for (long t = 0; t < tokens; ++t)
        for (long h = 0; h < heads; ++h) {
            const uint16_t* from = keys + (t * heads + h) * size;
            float largest = 1e-6f;
            for (long i = 0; i < size; ++i) largest = std::max(largest, std::fabs(bfloat16_load(from[i])));
            const float scale = largest / 127.0f;
            const long place = at[t] * heads + h;
            scales[place] = scale;
            for (long i = 0; i < size; ++i)
                cache[place * size + i] = int8_t(std::nearbyint(bfloat16_load(from[i]) / scale));
        }
}""",
    ),
    ("kv_cache_append_fp8", "cpp"): _file(
        _CPP,
        "keys, cache, scale, at",
        """
cache = cache.clone()
lib.append(keys, at, scale, cache, keys.shape[0], keys.shape[1], keys.shape[2])
return cache""",
        """
extern "C" void append(const uint16_t* keys, const int64_t* at, const float* scale, uint8_t* cache,
                       long tokens, long heads, long size) {
    #pragma omp parallel for
    for (long t = 0; t < tokens; ++t)
        for (long h = 0; h < heads; ++h)
            for (long i = 0; i < size; ++i) {
                const float x = bfloat16_load(keys[(t * heads + h) * size + i]) / scale[h];
                cache[(at[t] * heads + h) * size + i] = float8_e5m2_store(rounded_float8_e5m2_f32(x));
            }
}""",
    ),
    ("linear_w8a8_int8", "triton"): _file(
        _TRITON,
        "x, x_scale",
        """
y = torch.empty(len(x), len(self.weight), device=x.device)
product[(len(x) // 32, len(self.weight) // 64)](
    x, self.weight, x_scale, self.scale, self.bias, y, x.shape[1], len(self.weight), 32, 64, 64
)
return y""",
        """
def product(x, w, xs, ws, bias, y, inner, columns, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    total = tl.zeros((M, N), tl.int32)
    for start in range(0, inner, K):
        a = tl.load(x + row[:, None] * inner + start + k[None, :])
        b = tl.load(w + column[None, :] * inner + start + k[:, None])
        total += tl.dot(a, b, out_dtype=tl.int32)
    scaled = total.to(tl.float32) * tl.load(xs + row)[:, None] * tl.load(ws + column)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], scaled + tl.load(bias + column)[None, :])
""",
    ),
    ("linear_w4a16_groups", "triton"): _file(
        _TRITON,
        "x",
        """
y = torch.empty(len(x), len(self.packed), dtype=torch.bfloat16, device=x.device)
product[(len(x) // 32, len(self.packed) // 64)](
    x, self.packed, self.scale, y, x.shape[1], len(self.packed), self.group, 32, 64, 64
)
return y""",
        """
def product(x, packed, scale, y, inner, columns, group, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, inner, K):
        k = start + tl.arange(0, K)
        a = tl.load(x + row[:, None] * inner + k[None, :]).to(tl.float32)
        both = tl.load(packed + (column[None, :] * inner + k[:, None]) // 2)
        code = (both >> ((k % 2) * 4).to(tl.uint8)[:, None]) & 15
        at = k // group
        s = tl.load(scale + column[None, :] * (inner // group) + at[:, None]).to(tl.float32)
        total += tl.dot(a, (code.to(tl.float32) - 8.0) * s, input_precision="ieee")
    tl.store(y + row[:, None] * columns + column[None, :], total.to(tl.bfloat16))
""",
    ),
    ("linear_fp8_blocks", "triton"): _file(
        _TRITON,
        "x, x_scale",
        """
y = torch.empty(len(x), len(self.weight), dtype=torch.bfloat16, device=x.device)
product[(len(x) // 32, len(self.weight) // 64)](
    x, self.weight, x_scale, self.scale, y, x.shape[1], len(self.weight), self.block, 32, 64, 128
)
return y""",
        """
def product(x, w, xs, ws, y, inner, columns, block, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for b in range(0, inner // K):
        k = b * K + tl.arange(0, K)
        a = tl.load(x + row[:, None] * inner + k[None, :]).to(tl.float32)
        weight = tl.load(w + column[None, :] * inner + k[:, None]).to(tl.float32)
        part = tl.dot(a, weight, input_precision="ieee")
        s = tl.load(ws + column // block * (inner // K) + b)
        total += part * tl.load(xs + row * (inner // K) + b)[:, None] * s[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], total.to(tl.bfloat16))
""",
    ),
    ("kv_cache_append_int8", "triton"): _file(
        _TRITON,
        "keys, cache, scales, at",
        """
cache, scales = cache.clone(), scales.clone()
append[(keys.shape[0], keys.shape[1])](keys, at, cache, scales, keys.shape[1], keys.shape[2])
return cache, scales""",
        """
def append(keys, at, cache, scales, heads, SIZE: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, SIZE)
    x = tl.load(keys + (token * heads + head) * SIZE + i).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-6) / 127.0
    place = tl.load(at + token) * heads + head
    tl.store(scales + place, scale)
    down = tl.floor(x / scale)
    rest = x / scale - down
    odd = down - 2.0 * tl.floor(down / 2.0)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    tl.store(cache + place * SIZE + i, (down + tl.where(up, 1.0, 0.0)).to(tl.int8))
""",
    ),
}
WRONG: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("linear_w8a8_int8", "cpp"): {
        "the next channel's scale": ("ws[c]", "ws[(c + 1) % columns]"),
        "sums that saturate": ("sum = next", "sum = std::min(32767, std::max(-32768, next))"),
    },
    ("linear_w4a16_groups", "cpp"): {
        "the next group's scale": ("at = k / group", "at = (k / group + 1) % (inner / group)"),
        "a zero point of 7": ("(both >> 4) - 8", "(both >> 4) - 7"),
    },
    ("linear_fp8_blocks", "cpp"): {
        "the next block's scale": ("blocks + b];", "blocks + (b + 1) % blocks];"),
        "e5m2 for e4m3": ("float8_e4m3fn_load(w", "float8_e5m2_load(w"),
    },
    ("kv_cache_append_int8", "cpp"): {
        "rounded towards zero": ("std::nearbyint", "std::trunc"),
        "ties away from zero": ("std::nearbyint", "std::round"),
        "a range of 128": ("/ 127.0f", "/ 128.0f"),
    },
    ("kv_cache_append_fp8", "cpp"): {
        "the next head's scale": ("scale[h]", "scale[(h + 1) % heads]"),
        "rounded towards zero": ("rounded_float8_e5m2_f32(x)", "x"),
        "through e4m3": ("_f32(x)", "_f32(rounded_float8_e4m3fn_f32(x))"),
    },
    ("linear_w8a8_int8", "triton"): {
        "the next channel's scale": ("tl.load(ws + column)", "tl.load(ws + (column + 1) % columns)"),
    },
    ("linear_w4a16_groups", "triton"): {"the next group's scale": ("k // group", "(k // group + 1) % (inner // group)")},
    ("linear_fp8_blocks", "triton"): {"the first block's scale": ("(inner // K) + b)\n        total", "(inner // K))\n        total")},
    ("kv_cache_append_int8", "triton"): {"ties upwards": ("((rest == 0.5) & (odd == 1.0))", "(rest == 0.5)")},
}  # fmt: skip
