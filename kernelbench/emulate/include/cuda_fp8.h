// Floats of eight bits, one, two and four of them. Conversions round to nearest even; constructors saturate.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

static inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(
    double x, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind
) {
    if (x != x) return 0x7f;
    const int mantissa = kind == __NV_E4M3 ? 3 : 2, least = kind == __NV_E4M3 ? -6 : -14;
    const unsigned largest = kind == __NV_E4M3 ? 0x7e : 0x7b;
    const unsigned sign = __builtin_signbit(x) ? 0x80 : 0;
    const double size = __builtin_fabs(x);
    unsigned code = largest + 1;  // infinity, or NaN in a format that has none
    if (size < 1e6) {
        int exponent = 0;
        __builtin_frexp(size, &exponent);
        exponent = size == 0 || exponent - 1 < least ? least : exponent - 1;
        const unsigned steps = static_cast<unsigned>(__builtin_nearbyint(__builtin_ldexp(size, mantissa - exponent)));
        code = (static_cast<unsigned>(exponent - least) << mantissa) + steps;  // which carries where it rounds up
    }
    if (code > largest) code = saturation == __NV_SATFINITE ? largest : largest + 1;
    return static_cast<__nv_fp8_storage_t>(sign | code);
}
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(
    float x, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind
) {
    return __nv_cvt_double_to_fp8(x, saturation, kind);
}
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(
    float2 x, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind
) {
    const unsigned high = __nv_cvt_float_to_fp8(x.y, saturation, kind);
    return static_cast<__nv_fp8x2_storage_t>(high << 8 | __nv_cvt_float_to_fp8(x.x, saturation, kind));
}
static inline float kw_from_fp8(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
    const int mantissa = kind == __NV_E4M3 ? 3 : 2, least = kind == __NV_E4M3 ? -6 : -14;
    const unsigned code = x & 0x7f, exponent = code >> mantissa, rest = code & ((1u << mantissa) - 1);
    const int up = exponent ? static_cast<int>(exponent) - 1 : 0;
    float size = __builtin_ldexpf(static_cast<float>(rest + (exponent ? 1u << mantissa : 0)), least + up - mantissa);
    if (kind == __NV_E4M3 ? code == 0x7f : code > 0x7c) size = __builtin_nanf("");
    else if (kind == __NV_E5M2 && code == 0x7c) size = __builtin_inff();
    return x & 0x80 ? -size : size;
}

#define KW_FP8_FROM(Name, kind, KwT) \
    explicit Name(KwT x) : __x(__nv_cvt_double_to_fp8(static_cast<double>(x), __NV_SATFINITE, kind)) {}
#define KW_FP8(Name, Two, Four, kind)                                                              \
    struct Name {                                                                                  \
        __nv_fp8_storage_t __x;                                                                    \
        Name() = default;                                                                          \
        KW_FP8_FROM(Name, kind, float) KW_FP8_FROM(Name, kind, double)                             \
        KW_FP8_FROM(Name, kind, int) KW_FP8_FROM(Name, kind, unsigned)                             \
        explicit Name(__half x) : Name(float(x)) {}                                                \
        explicit Name(__nv_bfloat16 x) : Name(float(x)) {}                                         \
        explicit operator float() const { return kw_from_fp8(__x, kind); }                         \
        explicit operator double() const { return kw_from_fp8(__x, kind); }                        \
        explicit operator __half() const { return __half(kw_from_fp8(__x, kind)); }                \
        explicit operator __nv_bfloat16() const { return __nv_bfloat16(kw_from_fp8(__x, kind)); }  \
    };                                                                                             \
    struct __attribute__((aligned(2))) Two {                                                       \
        __nv_fp8x2_storage_t __x;                                                                  \
        Two() = default;                                                                           \
        explicit Two(float2 x) : __x(__nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, kind)) {}         \
        explicit operator float2() const {                                                         \
            return make_float2(kw_from_fp8(__x & 0xff, kind), kw_from_fp8(__x >> 8, kind));        \
        }                                                                                          \
    };                                                                                             \
    struct __attribute__((aligned(4))) Four {                                                      \
        __nv_fp8x4_storage_t __x;                                                                  \
        Four() = default;                                                                          \
        explicit Four(float4 x) {                                                                  \
            const unsigned low = Two(make_float2(x.x, x.y)).__x;                                   \
            __x = static_cast<unsigned>(Two(make_float2(x.z, x.w)).__x) << 16 | low;               \
        }                                                                                          \
        explicit operator float4() const {                                                         \
            return make_float4(kw_from_fp8(__x & 0xff, kind), kw_from_fp8(__x >> 8 & 0xff, kind),  \
                               kw_from_fp8(__x >> 16 & 0xff, kind), kw_from_fp8(__x >> 24, kind)); \
        }                                                                                          \
    };
KW_FP8(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, __NV_E4M3)
KW_FP8(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, __NV_E5M2)
#undef KW_FP8
#undef KW_FP8_FROM
