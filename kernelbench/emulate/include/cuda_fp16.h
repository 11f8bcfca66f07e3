#pragma once
#include "kw_small_float.h"

template <class T>
static inline uint16_t kw_to_half(T x) {
    return kw_bits<uint16_t>(static_cast<_Float16>(x));
}
static inline float kw_from_half(uint16_t bits) { return static_cast<float>(kw_bits<_Float16>(bits)); }

struct __half;
struct __half2;
static inline __half __hmax(__half a, __half b);
static inline __half __hmin(__half a, __half b);
static inline __half __hfma(__half a, __half b, __half c);
KW_SMALL(__half, __half2, kw_to_half, kw_from_half)
KW_SMALL_FUNCTIONS(__half)
static inline __half __hfma(__half a, __half b, __half c) {
    return __half(kw_odd(float(a), float(b), float(c)));
}
typedef __half half;
typedef __half2 half2;

static inline __half __float2half(float x) { return __half(x); }
static inline __half __float2half_rn(float x) { return __half(x); }
static inline __half __double2half(double x) { return __half(x); }
static inline float __half2float(__half x) { return float(x); }
static inline __half __int2half_rn(int x) { return __half(x); }
static inline int __half2int_rn(__half x) { return __float2int_rn(float(x)); }
static inline int __half2int_rz(__half x) { return __float2int_rz(float(x)); }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __half __ushort_as_half(unsigned short x) { __half r; r.bits = x; return r; }
static inline __half2 __floats2half2_rn(float x, float y) { return __half2(__half(x), __half(y)); }
static inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
static inline __half2 __float22half2_rn(float2 x) { return __floats2half2_rn(x.x, x.y); }
static inline float2 __half22float2(__half2 x) { return make_float2(float(x.x), float(x.y)); }
static inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
static inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
static inline __half2 __half2half2(__half x) { return __half2(x, x); }
static inline __half __low2half(__half2 x) { return x.x; }
static inline __half __high2half(__half2 x) { return x.y; }
static inline float __low2float(__half2 x) { return float(x.x); }
static inline float __high2float(__half2 x) { return float(x.y); }
static inline __half2 h2exp(__half2 x) { return __half2(hexp(x.x), hexp(x.y)); }
static inline __half2 h2sqrt(__half2 x) { return __half2(hsqrt(x.x), hsqrt(x.y)); }
static inline __half2 h2rsqrt(__half2 x) { return __half2(hrsqrt(x.x), hrsqrt(x.y)); }
#define CUDART_INF_FP16 __ushort_as_half(0x7C00u)
#define CUDART_ZERO_FP16 __ushort_as_half(0u)
#define CUDART_ONE_FP16 __ushort_as_half(0x3C00u)
