// Elementary functions for float, free of branches and tables, so that a compiler vectorises the loops
// that call them: #include <kernelwright/math.h> in a source of jit.compile_cpp, kw::exp_f32(x) in a loop. They
// need no -ffast-math: NaN, infinities and denormals behave as in <cmath>.
// The largest errors over the whole float range are stated in units in the last place and tested.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kw {

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

// e^x - 1 within 1.5 ulp, also near zero.
static inline float expm1_f32(float x) {
    const float clamped = std::fabs(x) > 89.0f ? std::copysign(89.0f, x) : x;
    const float shifted = std::fma(clamped, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = std::fma(n, -0.693359375f, clamped);
    r = std::fma(n, 2.12194440e-4f, r);
    const float r2 = r * r;
    const float high = std::fma(std::fma(1.9875691500e-4f, r, 1.3981999507e-3f), r2,
                                std::fma(8.3334519073e-3f, r, 4.1665795894e-2f));
    const float low = std::fma(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = std::fma(std::fma(high, r2, low), r2, r);
    const int32_t whole = bits_of(shifted) - 0x4b400000;
    const float half_scale = power_of_two(whole < -125 ? -126 : whole - 1);
    const float grown = 2.0f * std::fma(half_scale, p, half_scale - 0.5f);
    return n == 0.0f ? p : grown;
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

// log(1 + x) within 2 ulp: the logarithm of the rounded sum, corrected by what the rounding lost.
static inline float log1p_f32(float x) {
    const float sum = 1.0f + x;
    const float lost = x - (sum - 1.0f);
    const float corrected = log_f32(sum) + lost / sum;
    const bool special = sum == 0.0f || x == std::numeric_limits<float>::infinity();
    return special ? log_f32(sum) : (sum == 1.0f ? x : corrected);
}

// Hyperbolic tangent within 2.5 ulp.
static inline float tanh_f32(float x) {
    const float magnitude = std::fabs(x);
    const float e = expm1_f32(magnitude > 10.0f ? 20.0f : 2.0f * magnitude);
    const float y = magnitude < 1.0e-4f ? magnitude : e / (e + 2.0f);
    return x != x ? x : std::copysign(y, x);
}

// Logistic function within 2.5 ulp, denormal results included.
static inline float sigmoid_f32(float x) {
    const float e = exp_nonpositive_f32(-std::fabs(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Error function within 1.5 ulp: an odd polynomial near zero, 1 - exp(polynomial) in the tails. The
// coefficients are minimax fits of erf(x)/x - 1 and of log(erfc(x)) + x to relative error 2e-8 of erf.
static inline float erf_f32(float x) {
    const float t = std::fabs(x);
    const float clamped = t > 4.0f ? 4.0f : t;
    const float s = x * x;
    const float t2 = clamped * clamped;
    const float high = std::fma(std::fma(-1.189027898e-05f, clamped, 3.294199123e-04f), t2,
                                std::fma(-3.669449594e-03f, clamped, 2.381935343e-02f));
    const float low = std::fma(-1.063036472e-01f, clamped, -6.351107955e-01f);
    const float exponent = std::fma(std::fma(high, t2, low), t2, -1.286585182e-01f * clamped) - clamped;
    const float tail = 1.0f - exp_nonpositive_f32(exponent);
    const float s2 = s * s;
    const float far = std::fma(-5.919354153e-04f, s, 4.979117773e-03f);
    const float mid = std::fma(-2.675702609e-02f, s, 1.128155217e-01f);
    const float close = std::fma(-3.761246800e-01f, s, 1.283791512e-01f);
    const float head = std::fma(std::fma(std::fma(far, s2, mid), s2, close), x, x);
    return t > 0.9375f ? std::copysign(tail, x) : head;
}

// x times the normal distribution function: within 3.5 ulp for x > 0, within 1e-7 for x < 0. The tail beyond |x| is e^polynomial(|x|), a minimax fit on [0, 6] that falls faster than the
// true tail from there on.
static inline float gelu_f32(float x) {
    const float t = std::fabs(x);
    const float near = t > 6.0f ? 6.0f : t;
    const float t2 = near * near;
    const float t4 = t2 * t2;
    const float c98 = std::fma(2.386039739e-07f, near, -4.877740139e-06f);
    const float c76 = std::fma(4.124195766e-05f, near, -1.621849369e-04f);
    const float c54 = std::fma(-5.481262633e-05f, near, 4.874776583e-03f);
    const float c32 = std::fma(-3.638723120e-02f, near, -3.182955384e-01f);
    const float c10 = std::fma(-7.978860736e-01f, near, -6.931471825e-01f);
    const float high = std::fma(std::fma(c98, t2, c76), t2, c54);
    const float p = std::fma(high, t4, std::fma(c32, t2, c10));
    const float tail = exp_nonpositive_f32(std::fma(near - t, 8.0f, p));
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

// x^y for x > 0 within 1 ulp, through double; the cases of <cmath> for the rest.
static inline float pow_f32(float x, float y) {
    const float base = std::fabs(x);
    const bool tiny = base < 1.17549435e-38f;
    const float scaled = tiny ? base * 8388608.0f : base;
    const int32_t offset = bits_of(scaled) - 0x3f3504f3;
    const double m = static_cast<double>(float_of((offset & 0x007fffff) + 0x3f3504f3)) - 1.0;
    const double exponent = static_cast<double>((offset >> 23) - (tiny ? 23 : 0));
    const double u = m / (m + 2.0);  // log(1 + m) = 2 atanh(u)
    const double v = u * u;
    double series = 1.0 / 15.0;
    series = std::fma(series, v, 1.0 / 13.0);
    series = std::fma(series, v, 1.0 / 11.0);
    series = std::fma(series, v, 1.0 / 9.0);
    series = std::fma(series, v, 1.0 / 7.0);
    series = std::fma(series, v, 1.0 / 5.0);
    series = std::fma(series, v, 1.0 / 3.0);
    const double log2_base = exponent + 2.0 * 1.4426950408889634 * std::fma(u * v, series, u);
    const double z = log2_base * static_cast<double>(y);
    const double bounded = z > 200.0 ? 200.0 : (z < -200.0 ? -200.0 : z);
    const double shifted = bounded + 6755399441055744.0;
    const double r = (bounded - (shifted - 6755399441055744.0)) * 0.6931471805599453;
    double p = 1.0 / 5040.0;
    p = std::fma(p, r, 1.0 / 720.0);
    p = std::fma(p, r, 1.0 / 120.0);
    p = std::fma(p, r, 1.0 / 24.0);
    p = std::fma(p, r, 1.0 / 6.0);
    p = std::fma(p, r, 0.5);
    p = std::fma(p * r, r, r) + 1.0;
    int64_t whole;
    std::memcpy(&whole, &shifted, sizeof whole);
    const int64_t scale_bits = (whole - 0x4338000000000000 + 1023) << 52;
    double scale;
    std::memcpy(&scale, &scale_bits, sizeof scale);
    float result = static_cast<float>(p * scale);
    const float infinity = std::numeric_limits<float>::infinity();
    const bool whole_y = std::nearbyint(y) == y;
    const bool odd_y = whole_y && std::nearbyint(0.5f * y) != 0.5f * y;
    const float at_infinity = y > 0.0f ? infinity : 0.0f;
    const float at_zero = y > 0.0f ? 0.0f : infinity;
    result = base == infinity ? at_infinity : result;
    result = base == 0.0f ? at_zero : result;
    const float at_infinite_y = (base > 1.0f) == (y > 0.0f) ? infinity : 0.0f;
    result = std::fabs(y) == infinity ? (base == 1.0f ? 1.0f : at_infinite_y) : result;
    const bool negative = std::signbit(x);
    result = negative && odd_y ? -result : result;
    const bool undefined = negative && !whole_y && base != 0.0f && base != infinity;
    result = undefined || x != x || y != y ? std::numeric_limits<float>::quiet_NaN() : result;
    return y == 0.0f || x == 1.0f ? 1.0f : result;
}

// From here on float stands for any type: what a double or integer kernel needs is derived from it.

static inline float where_f32(bool condition, float a, float b) { return condition ? a : b; }

static inline float abs_f32(float x) { return std::abs(x); }

static inline float sqrt_f32(float x) { return std::sqrt(x); }

static inline float rsqrt_f32(float x) { return 1.0f / std::sqrt(x); }

static inline float floor_f32(float x) { return std::floor(x); }

static inline float ceil_f32(float x) { return std::ceil(x); }

static inline float trunc_f32(float x) { return std::trunc(x); }

// To the nearest integer, halves to even.
static inline float round_f32(float x) { return std::nearbyint(x); }

static inline float sign_f32(float x) { return x > 0 ? 1 : (x < 0 ? -1 : 0); }

// x, but not below the bound; NaN stays NaN.
static inline float at_least_f32(float x, float bound) { return x < bound ? bound : x; }

// x, but not above the bound; NaN stays NaN.
static inline float at_most_f32(float x, float bound) { return x > bound ? bound : x; }

// The larger; NaN when either is.
static inline float maximum_f32(float a, float b) { return a > b || a != a ? a : b; }

// The smaller; NaN when either is.
static inline float minimum_f32(float a, float b) { return a < b || a != a ? a : b; }

static inline float gelu_tanh_f32(float x) {
    return 0.5f * x * (1.0f + tanh_f32(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// x tanh(log(1 + e^x)), with the two functions taken together.
static inline float mish_f32(float x) {
    const float e = exp_f32(x);
    const float n = e * (e + 2.0f);
    return x > 20.0f ? x : x * (n / (n + 2.0f));
}

// log(1 + t) within 1.7 ulp, for t in [0, 1]: a minimax fit of log(1 + t)/t to relative error 5e-9.
static inline float log1p_unit_f32(float t) {
    const float t2 = t * t;
    const float t4 = t2 * t2;
    const float low = std::fma(std::fma(-2.495413352e-1f, t, 3.332996240e-1f), t, -4.999990242e-1f);
    const float middle = std::fma(std::fma(1.060365142e-1f, t, -1.530559052e-1f), t, 1.967593855e-1f);
    const float high = std::fma(std::fma(-3.244021139e-3f, t, 1.985144416e-2f), t, -5.695950006e-2f);
    return std::fma(t2, std::fma(t4 * t2, high, std::fma(t2 * t, middle, low)), t);
}

// log(1 + e^x), of floats within 3 ulp, as torch has it: x itself from the threshold on.
static inline float softplus_f32(float x, float beta, float threshold) {
    const float z = x * beta;
    const float y = (z > 0.0f ? z : 0.0f) + log1p_unit_f32(exp_nonpositive_f32(-std::fabs(z)));
    return z > threshold ? x : y / beta;
}

static inline float elu_f32(float x, float alpha, float scale, float input_scale) {
    return x > 0.0f ? x * scale : alpha * scale * expm1_f32(x * input_scale);
}

static inline float hardsigmoid_f32(float x) { return at_most_f32(at_least_f32(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f); }

// What integers have of their own.

static inline bool bitwise_not_b(bool x) { return !x; }

static inline uint8_t bitwise_not_u8(uint8_t x) { return static_cast<uint8_t>(~x); }

static inline int8_t bitwise_not_i8(int8_t x) { return static_cast<int8_t>(~x); }

static inline int16_t bitwise_not_i16(int16_t x) { return static_cast<int16_t>(~x); }

static inline int32_t bitwise_not_i32(int32_t x) { return ~x; }

static inline int64_t bitwise_not_i64(int64_t x) { return ~x; }

// What double takes from the library.

static inline double exp_f64(double x) { return std::exp(x); }

static inline double expm1_f64(double x) { return std::expm1(x); }

static inline double log_f64(double x) { return std::log(x); }

static inline double log1p_f64(double x) { return std::log1p(x); }

static inline double log1p_unit_f64(double x) { return std::log1p(x); }

static inline double tanh_f64(double x) { return std::tanh(x); }

static inline double erf_f64(double x) { return std::erf(x); }

static inline double pow_f64(double x, double y) { return std::pow(x, y); }

static inline double exp_nonpositive_f64(double x) { return std::exp(x); }

static inline double gelu_f64(double x) { return 0.5 * x * (1.0 + std::erf(x * 0.7071067811865476)); }

static inline double sigmoid_f64(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// 16-bit storage: loaded to float, stored with rounding to nearest even.

static inline float bfloat16_load(uint16_t x) { return float_of(static_cast<int32_t>(x) << 16); }

static inline uint16_t bfloat16_store(float x) {
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

static inline float float16_load(uint16_t x) {
    const int32_t magnitude = (x & 0x7fff) << 13;
    const float normal = float_of(magnitude + (112 << 23));
    const float tiny = float_of(magnitude + (113 << 23)) - float_of(113 << 23);
    const float special = float_of(magnitude + (224 << 23));
    const float finite = (x & 0x7c00) == 0 ? tiny : normal;
    const float value = (x & 0x7c00) == 0x7c00 ? special : finite;
    return (x & 0x8000) != 0 ? -value : value;
}

static inline uint16_t float16_store(float x) {
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const float tiny = float_of(static_cast<int32_t>(magnitude)) + 0.5f;  // rounds to a multiple of 2^-24
    const uint32_t denormal = static_cast<uint32_t>(bits_of(tiny)) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? large : finite));
}

// 8-bit storage. A float is rounded to nearest even first, to one that the format has; then storing is exact.

static inline float rounded_float8_e4m3fn_f32(float x) {
    const uint32_t magnitude = static_cast<uint32_t>(bits_of(x)) & 0x7fffffffu;
    const uint32_t three_bits = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) & ~0xfffffu;
    const float tiny = (std::fabs(x) + 16384.0f) - 16384.0f;  // a multiple of 2^-9
    const float size = magnitude < 0x3c800000u ? tiny : float_of(static_cast<int32_t>(three_bits));
    const float saturated = size > 448.0f ? 448.0f : size;
    return x != x ? x : std::copysign(saturated, x);
}

static inline float float8_e4m3fn_load(uint8_t x) {
    const int32_t magnitude = x & 0x7f;
    const float denormal = static_cast<float>(magnitude) * 0.001953125f;
    const float finite = magnitude < 8 ? denormal : float_of((magnitude << 20) + (120 << 23));
    const float value = magnitude == 0x7f ? float_of(0x7fc00000) : finite;
    return (x & 0x80) != 0 ? -value : value;
}

static inline uint8_t float8_e4m3fn_store(float x) {
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    const uint32_t magnitude = bits & 0x7fffffffu;
    const float tiny = magnitude < 0x3c800000u ? std::fabs(x) * 512.0f : 0.0f;
    const uint32_t denormal = static_cast<uint32_t>(static_cast<int32_t>(tiny));
    const uint32_t finite = magnitude < 0x3c800000u ? denormal : (magnitude >> 20) - 960u;
    return static_cast<uint8_t>((bits >> 24 & 0x80u) | (magnitude > 0x7f800000u ? 0x7fu : finite));
}

static inline float rounded_float8_e5m2_f32(float x) {
    const uint32_t magnitude = static_cast<uint32_t>(bits_of(x)) & 0x7fffffffu;
    const uint32_t two_bits = (magnitude + 0xfffffu + (magnitude >> 21 & 1u)) & ~0x1fffffu;
    const float tiny = (std::fabs(x) + 128.0f) - 128.0f;  // a multiple of 2^-16
    const float size = magnitude < 0x38800000u ? tiny : float_of(static_cast<int32_t>(two_bits));
    const float overflown = size > 57344.0f ? float_of(0x7f800000) : size;
    return x != x ? x : std::copysign(overflown, x);
}

static inline float float8_e5m2_load(uint8_t x) {
    const int32_t magnitude = x & 0x7f;
    const float denormal = static_cast<float>(magnitude) * 1.52587890625e-5f;
    const float finite = magnitude < 4 ? denormal : float_of((magnitude << 21) + (112 << 23));
    const float value = magnitude >= 0x7c ? float_of((magnitude << 21) + (224 << 23)) : finite;
    return (x & 0x80) != 0 ? -value : value;
}

static inline uint8_t float8_e5m2_store(float x) {
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    const uint32_t magnitude = bits & 0x7fffffffu;
    const float tiny = magnitude < 0x38800000u ? std::fabs(x) * 65536.0f : 0.0f;
    const uint32_t denormal = static_cast<uint32_t>(static_cast<int32_t>(tiny));
    const uint32_t finite = magnitude < 0x38800000u ? denormal : (magnitude >> 21) - 448u;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
    return static_cast<uint8_t>((bits >> 24 & 0x80u) | (magnitude >= 0x7f800000u ? large : finite));
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

static inline void stream_fence() {
#if defined(__AVX__)
    _mm_sfence();
#endif
}

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

// One number for the order of values and, among equal ones, of places, the first of them highest: the bits of
// a float, turned where it is negative, are in the order of floats. A NaN is above all.
static inline int64_t ranked_f32(float x, int32_t at) {
    const int32_t bits = bits_of(x);
    const int32_t key = x != x ? 0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
    return key * 4294967296 + (4294967295 - at);
}

static inline float unranked(int64_t rank) {
    const int32_t key = static_cast<int32_t>(rank >> 32);
    return float_of(key ^ (key >> 31 & 0x7fffffff));
}

// The same where small values are high.
static inline int64_t ranked_down_f32(float x, int32_t at) {
    const int32_t bits = bits_of(x);
    const int32_t key = x != x ? 0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
    return ~key * 4294967296 + (4294967295 - at);
}

static inline float unranked_down(int64_t rank) {
    const int32_t key = ~static_cast<int32_t>(rank >> 32);
    return float_of(key ^ (key >> 31 & 0x7fffffff));
}

static inline int64_t place_of(int64_t rank) { return 4294967295 - (rank & 4294967295); }

// 2^n of any integer, by two powers, whose product may be subnormal.
static inline float exp2_of_integer(int32_t n) {
    n = n < -250 ? -250 : n > 250 ? 250 : n;
    const int32_t half = n >> 1;
    return float_of((half + 127) << 23) * float_of((n - half + 127) << 23);
}

// x 2^n by three powers that are numbers of float whatever n is.
static inline float times_power_of_two_f32(float x, int32_t n) {
    n = n < -300 ? -300 : n > 300 ? 300 : n;
    const int32_t third = n / 3;
    const float power = float_of((third + 127) << 23);
    return x * power * power * float_of((n - 2 * third + 127) << 23);
}

}  // namespace kw
