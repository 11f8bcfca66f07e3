// What half and bfloat16 share: values of 16 bits that are computed with in float and rounded once.
// Of + - * / and sqrt that is the correctly rounded result, for float has more than twice their digits.
#pragma once
#include "simt.h"

#define KW_SMALL(Small, Pair, from_float, to_float)                                                \
    struct Small {                                                                                 \
        uint16_t bits;                                                                             \
        Small() = default;                                                                         \
        KW_FROM(Small, from_float, float) KW_FROM(Small, from_float, double)                       \
        KW_FROM(Small, from_float, int) KW_FROM(Small, from_float, unsigned)                       \
        KW_FROM(Small, from_float, long) KW_FROM(Small, from_float, unsigned long)                 \
        KW_FROM(Small, from_float, long long) KW_FROM(Small, from_float, unsigned long long)       \
        KW_FROM(Small, from_float, short) KW_FROM(Small, from_float, unsigned short)               \
        operator float() const { return to_float(bits); }                                          \
        Small& operator+=(Small b) { return *this = Small(float(*this) + float(b)); }              \
        Small& operator-=(Small b) { return *this = Small(float(*this) - float(b)); }              \
        Small& operator*=(Small b) { return *this = Small(float(*this) * float(b)); }              \
        Small& operator/=(Small b) { return *this = Small(float(*this) / float(b)); }              \
    };                                                                                             \
    KW_OPERATOR(Small, +) KW_OPERATOR(Small, -) KW_OPERATOR(Small, *) KW_OPERATOR(Small, /)        \
    KW_COMPARE(Small, ==) KW_COMPARE(Small, !=) KW_COMPARE(Small, <) KW_COMPARE(Small, <=)         \
    KW_COMPARE(Small, >) KW_COMPARE(Small, >=)                                                     \
    static inline Small operator-(Small a) { Small r = a; r.bits ^= 0x8000; return r; }            \
    struct __attribute__((aligned(4))) Pair {                                                      \
        Small x, y;                                                                                \
        Pair() = default;                                                                          \
        Pair(Small x, Small y) : x(x), y(y) {}                                                     \
    };                                                                                             \
    KW_BOTH(Small, Pair, __hadd2, a.x + b.x, a.y + b.y)                                            \
    KW_BOTH(Small, Pair, __hsub2, a.x - b.x, a.y - b.y)                                            \
    KW_BOTH(Small, Pair, __hmul2, a.x * b.x, a.y * b.y)                                            \
    KW_BOTH(Small, Pair, __h2div, a.x / b.x, a.y / b.y)                                            \
    KW_BOTH(Small, Pair, __hmax2, __hmax(a.x, b.x), __hmax(a.y, b.y))                              \
    KW_BOTH(Small, Pair, __hmin2, __hmin(a.x, b.x), __hmin(a.y, b.y))                              \
    static inline Pair operator+(Pair a, Pair b) { return __hadd2(a, b); }                         \
    static inline Pair operator-(Pair a, Pair b) { return __hsub2(a, b); }                         \
    static inline Pair operator*(Pair a, Pair b) { return __hmul2(a, b); }                         \
    static inline Pair operator/(Pair a, Pair b) { return __h2div(a, b); }                         \
    static inline Pair __hfma2(Pair a, Pair b, Pair c) {                                           \
        return Pair(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                 \
    }                                                                                              \
    static inline Pair __hneg2(Pair a) { return Pair(-a.x, -a.y); }                                \
    static inline Pair operator-(Pair a) { return __hneg2(a); }                                    \
    static inline Pair& operator+=(Pair& a, Pair b) { return a = a + b; }                          \
    static inline Pair& operator-=(Pair& a, Pair b) { return a = a - b; }                          \
    static inline Pair& operator*=(Pair& a, Pair b) { return a = a * b; }                          \
    static inline Pair& operator/=(Pair& a, Pair b) { return a = a / b; }                          \
    KW_BOTH(Small, Pair, __heq2, a.x == b.x, a.y == b.y)                                           \
    KW_BOTH(Small, Pair, __hne2, a.x != b.x, a.y != b.y)                                           \
    KW_BOTH(Small, Pair, __hlt2, a.x < b.x, a.y < b.y)                                             \
    KW_BOTH(Small, Pair, __hle2, a.x <= b.x, a.y <= b.y)                                           \
    KW_BOTH(Small, Pair, __hgt2, a.x > b.x, a.y > b.y)                                             \
    KW_BOTH(Small, Pair, __hge2, a.x >= b.x, a.y >= b.y)
#define KW_FROM(Small, from_float, KwT) Small(KwT x) : bits(from_float(x)) {}
#define KW_OPERATOR(Small, op)                                                                     \
    static inline Small operator op(Small a, Small b) { return Small(float(a) op float(b)); }
#define KW_COMPARE(Small, op)                                                                      \
    static inline bool operator op(Small a, Small b) { return float(a) op float(b); }
#define KW_BOTH(Small, Pair, name, first, second)                                                  \
    static inline Pair name(Pair a, Pair b) { return Pair(first, second); }
#define KW_SMALL_FUNCTIONS(Small)                                                                  \
    static inline Small __hadd(Small a, Small b) { return a + b; }                                 \
    static inline Small __hsub(Small a, Small b) { return a - b; }                                 \
    static inline Small __hmul(Small a, Small b) { return a * b; }                                 \
    static inline Small __hdiv(Small a, Small b) { return a / b; }                                 \
    static inline Small __hneg(Small a) { return -a; }                                             \
    static inline Small __habs(Small a) { a.bits &= 0x7fff; return a; }                            \
    static inline bool __hisnan(Small a) { return float(a) != float(a); }                          \
    static inline bool __hisinf(Small a) { return isinf(float(a)); }                               \
    static inline Small __hmax(Small a, Small b) { return Small(fmaxf(float(a), float(b))); }      \
    static inline Small __hmin(Small a, Small b) { return Small(fminf(float(a), float(b))); }      \
    static inline bool __heq(Small a, Small b) { return a == b; }                                  \
    static inline bool __hne(Small a, Small b) { return a != b; }                                  \
    static inline bool __hlt(Small a, Small b) { return a < b; }                                   \
    static inline bool __hle(Small a, Small b) { return a <= b; }                                  \
    static inline bool __hgt(Small a, Small b) { return a > b; }                                   \
    static inline bool __hge(Small a, Small b) { return a >= b; }                                  \
    static inline Small hexp(Small a) { return Small(expf(float(a))); }                            \
    static inline Small hexp2(Small a) { return Small(exp2f(float(a))); }                          \
    static inline Small hlog(Small a) { return Small(logf(float(a))); }                            \
    static inline Small hlog2(Small a) { return Small(log2f(float(a))); }                          \
    static inline Small hsqrt(Small a) { return Small(sqrtf(float(a))); }                          \
    static inline Small hrsqrt(Small a) { return Small(rsqrtf(float(a))); }                        \
    static inline Small hrcp(Small a) { return Small(1.0f / float(a)); }                           \
    static inline Small hsin(Small a) { return Small(sinf(float(a))); }                            \
    static inline Small hcos(Small a) { return Small(cosf(float(a))); }                            \
    static inline Small htanh(Small a) { return Small(tanhf(float(a))); }                          \
    static inline Small hfloor(Small a) { return Small(floorf(float(a))); }                        \
    static inline Small hceil(Small a) { return Small(ceilf(float(a))); }                          \
    static inline Small htrunc(Small a) { return Small(truncf(float(a))); }                        \
    static inline Small hrint(Small a) { return Small(rintf(float(a))); }                          \
    static inline Small hexp10(Small a) { return Small(exp10f(float(a))); }                        \
    static inline Small hlog10(Small a) { return Small(log10f(float(a))); }                        \
    static inline Small __hadd_rn(Small a, Small b) { return a + b; }                              \
    static inline Small __hsub_rn(Small a, Small b) { return a - b; }                              \
    static inline Small __hmul_rn(Small a, Small b) { return a * b; }                              \
    static inline Small __hadd_sat(Small a, Small b) { return Small(__saturatef(float(a + b))); }  \
    static inline Small __hmul_sat(Small a, Small b) { return Small(__saturatef(float(a * b))); }  \
    static inline Small __hfma_relu(Small a, Small b, Small c) { return __hmax(__hfma(a, b, c), Small(0.0f)); }

// One after the other for both of a pair.
#define KW_OF_PAIR(Pair, name, one)                                                                \
    static inline Pair name(Pair a) { return Pair(one(a.x), one(a.y)); }
#define KW_PAIR_FUNCTIONS(Pair)                                                                    \
    KW_OF_PAIR(Pair, h2exp, hexp) KW_OF_PAIR(Pair, h2exp2, hexp2) KW_OF_PAIR(Pair, h2log, hlog)    \
    KW_OF_PAIR(Pair, h2log2, hlog2) KW_OF_PAIR(Pair, h2sqrt, hsqrt) KW_OF_PAIR(Pair, h2rsqrt, hrsqrt) \
    KW_OF_PAIR(Pair, h2rcp, hrcp) KW_OF_PAIR(Pair, h2sin, hsin) KW_OF_PAIR(Pair, h2cos, hcos)      \
    KW_OF_PAIR(Pair, h2tanh, htanh) KW_OF_PAIR(Pair, h2floor, hfloor) KW_OF_PAIR(Pair, h2ceil, hceil) \
    KW_OF_PAIR(Pair, h2trunc, htrunc) KW_OF_PAIR(Pair, h2rint, hrint) KW_OF_PAIR(Pair, __habs2, __habs)

// The nearest of 16 bits, or its neighbour on the side that is asked for.
template <class Small>
static inline Small kw_towards_zero(float x) {
    Small near(x);
    if (fabsf(float(near)) > fabsf(x)) --near.bits;
    return near;
}
template <class Small>
static inline Small kw_down(float x) {
    Small near(x);
    if (float(near) > x) near.bits = near.bits == 0 ? 0x8001 : near.bits & 0x8000 ? near.bits + 1 : near.bits - 1;
    return near;
}
template <class Small>
static inline Small kw_up(float x) { return -kw_down<Small>(-x); }

// a * b + c, of which the product is exact in double, rounded to odd before it is rounded to 16 bits.
static inline double kw_odd(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, sum = product + c;
    const double back = sum - product, left = (product - (sum - back)) + (c - back);
    if (left != 0.0 && isfinite(sum)) {
        uint64_t bits = kw_bits<uint64_t>(sum);
        if (!(bits & 1)) {
            bits += (left > 0.0) == (sum > 0.0) ? 1 : -1;
            return kw_bits<double>(bits);
        }
    }
    return sum;
}
