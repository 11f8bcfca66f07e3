#pragma once
#include "kw_small_float.h"

template <class KwT>
static inline uint16_t kw_to_half(KwT x) {
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
static inline __half __float2half_rz(float x) { return kw_towards_zero<__half>(x); }
static inline __half __float2half_rd(float x) { return kw_down<__half>(x); }
static inline __half __float2half_ru(float x) { return kw_up<__half>(x); }
static inline __half __double2half(double x) { return __half(x); }
static inline float __half2float(__half x) { return float(x); }
#define KW_HALF_TO(name, KwT)                                                                        \
    static inline KwT __half2##name##_rn(__half x) { return kw_whole<KwT>(rint(float(x))); }           \
    static inline KwT __half2##name##_rz(__half x) { return kw_whole<KwT>(trunc(float(x))); }          \
    static inline KwT __half2##name##_rd(__half x) { return kw_whole<KwT>(floor(float(x))); }          \
    static inline KwT __half2##name##_ru(__half x) { return kw_whole<KwT>(ceil(float(x))); }           \
    static inline __half __##name##2half_rn(KwT x) { return __half(x); }
KW_HALF_TO(int, int) KW_HALF_TO(uint, unsigned) KW_HALF_TO(short, short) KW_HALF_TO(ushort, unsigned short)
KW_HALF_TO(ll, long long) KW_HALF_TO(ull, unsigned long long)
#undef KW_HALF_TO
static inline short __half_as_short(__half x) { return static_cast<short>(x.bits); }
static inline __half __short_as_half(short x) { __half r; r.bits = static_cast<uint16_t>(x); return r; }
static inline __half2 __lows2half2(__half2 x, __half2 y) { return __half2(x.x, y.x); }
static inline __half2 __highs2half2(__half2 x, __half2 y) { return __half2(x.y, y.y); }
static inline __half2 __lowhigh2highlow(__half2 x) { return __half2(x.y, x.x); }
static inline __half2 __low2half2(__half2 x) { return __half2(x.x, x.x); }
static inline __half2 __high2half2(__half2 x) { return __half2(x.y, x.y); }
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
KW_PAIR_FUNCTIONS(__half2)
#define CUDART_INF_FP16 __ushort_as_half(0x7C00u)
#define CUDART_ZERO_FP16 __ushort_as_half(0u)
#define CUDART_ONE_FP16 __ushort_as_half(0x3C00u)
