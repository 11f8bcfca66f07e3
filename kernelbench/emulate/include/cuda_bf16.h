#pragma once
#include "kw_small_float.h"

static inline uint16_t kw_to_bfloat(float x) {
    const uint32_t bits = kw_bits<uint32_t>(x);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// By way of a float that is rounded to odd, so that it is rounded once.
template <class KwT>
static inline uint16_t kw_to_bfloat(KwT x) {
    const float near = static_cast<float>(x);
    uint32_t bits = kw_bits<uint32_t>(near);
    const double exact = static_cast<double>(x), less = exact - static_cast<double>(near);
    if (less != 0.0 && !(bits & 1) && isfinite(near)) bits += near == 0.0f || (less > 0.0) == (near > 0.0f) ? 1 : -1;
    return kw_to_bfloat(kw_bits<float>(bits));
}
static inline float kw_from_bfloat(uint16_t bits) { return kw_bits<float>(static_cast<uint32_t>(bits) << 16); }

struct __nv_bfloat16;
struct __nv_bfloat162;
static inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b);
static inline __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b);
static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c);
KW_SMALL(__nv_bfloat16, __nv_bfloat162, kw_to_bfloat, kw_from_bfloat)
KW_SMALL_FUNCTIONS(__nv_bfloat16)
static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __nv_bfloat16(kw_odd(float(a), float(b), float(c)));
}
KW_PAIR_FUNCTIONS(__nv_bfloat162)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rz(float x) { return kw_towards_zero<__nv_bfloat16>(x); }
static inline __nv_bfloat16 __float2bfloat16_rd(float x) { return kw_down<__nv_bfloat16>(x); }
static inline __nv_bfloat16 __float2bfloat16_ru(float x) { return kw_up<__nv_bfloat16>(x); }
static inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
static inline int __bfloat162int_rn(__nv_bfloat16 x) { return __float2int_rn(float(x)); }
static inline int __bfloat162int_rz(__nv_bfloat16 x) { return __float2int_rz(float(x)); }
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return __nv_bfloat162(__nv_bfloat16(x.x), __nv_bfloat16(x.y)); }
static inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
static inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
static inline float2 __bfloat1622float2(__nv_bfloat162 x) { return make_float2(float(x.x), float(x.y)); }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return __nv_bfloat162(x, x); }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
static inline float __low2float(__nv_bfloat162 x) { return float(x.x); }
static inline float __high2float(__nv_bfloat162 x) { return float(x.y); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { __nv_bfloat16 r; r.bits = x; return r; }
