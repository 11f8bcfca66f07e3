// CUDA's mathematical functions that C has not. Fast ones (__expf) are composed as CUDA says that they are,
// so that their errors are of the size that CUDA states. The C library has functions of their names.
#pragma once

#define KW_F static __forceinline__

// min and max of all that CUDA has them for.
#define KW_ORDER(KwT)                                                                                \
    KW_F KwT min(KwT a, KwT b) { return b < a ? b : a; }                                                 \
    KW_F KwT max(KwT a, KwT b) { return a < b ? b : a; }
KW_ORDER(int) KW_ORDER(unsigned) KW_ORDER(long) KW_ORDER(unsigned long) KW_ORDER(long long)
KW_ORDER(unsigned long long)
#undef KW_ORDER
KW_F float min(float a, float b) { return fminf(a, b); }
KW_F float max(float a, float b) { return fmaxf(a, b); }
KW_F double min(double a, double b) { return fmin(a, b); }
KW_F double max(double a, double b) { return fmax(a, b); }
KW_F double min(float a, double b) { return fmin(a, b); }
KW_F double max(float a, double b) { return fmax(a, b); }
KW_F double min(double a, float b) { return fmin(a, b); }
KW_F double max(double a, float b) { return fmax(a, b); }
KW_F unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
KW_F unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
KW_F unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
KW_F unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
KW_F long min(long a, int b) { return min(a, static_cast<long>(b)); }
KW_F long max(long a, int b) { return max(a, static_cast<long>(b)); }
KW_F long min(int a, long b) { return min(static_cast<long>(a), b); }
KW_F long max(int a, long b) { return max(static_cast<long>(a), b); }
KW_F unsigned umin(unsigned a, unsigned b) { return min(a, b); }
KW_F unsigned umax(unsigned a, unsigned b) { return max(a, b); }

KW_F float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
KW_F double rsqrt(double x) { return static_cast<double>(1.0L / sqrtl(x)); }
KW_F float rsqrt(float x) { return rsqrtf(x); }
KW_F float rcbrtf(float x) { return static_cast<float>(1.0 / cbrt(static_cast<double>(x))); }
KW_F float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
KW_F float sinpif(float x) { return static_cast<float>(sin(M_PI * fmod(static_cast<double>(x), 2.0))); }
KW_F float cospif(float x) { return static_cast<float>(cos(M_PI * fmod(static_cast<double>(x), 2.0))); }
KW_F float normcdff(float x) { return static_cast<float>(0.5 * erfc(-static_cast<double>(x) * M_SQRT1_2)); }
KW_F double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
KW_F void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
KW_F float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
KW_F double erfcx(double x) {
    if (x < 25.0) return exp(x * x) * erfc(x);
    const double t = 0.5 / (x * x);
    return (1.0 - t * (1.0 - 3.0 * t * (1.0 - 5.0 * t))) / (x * 1.7724538509055160273);
}
KW_F float erfcxf(float x) { return static_cast<float>(erfcx(static_cast<double>(x))); }
// From where Abramowitz and Stegun (26.2.22) are within 0.003, by Halley's steps.
static double erfcinv(double y) {
    if (!(y > 0.0 && y < 2.0)) return y == 0.0 ? INFINITY : y == 2.0 ? -INFINITY : NAN;
    const double tail = y < 1.0 ? y : 2.0 - y, t = sqrt(-2.0 * log(tail / 2.0));
    double x = -M_SQRT1_2 * ((2.30753 + t * 0.27061) / (1.0 + t * (0.99229 + t * 0.04481)) - t);
    for (int step = 0; step < 3; ++step) {
        const double error = erfc(x) - tail;
        x += error / (1.12837916709551257 * exp(-x * x) - x * error);
    }
    return y < 1.0 ? x : -x;
}
static double erfinv(double y) {
    if (fabs(y) > 0.5) return y > 0.0 ? erfcinv(1.0 - y) : -erfcinv(1.0 + y);
    double x = y * 0.886226925452758014;
    for (int step = 0; step < 4; ++step) x -= (erf(x) - y) / (1.12837916709551257 * exp(-x * x));
    return x;
}
KW_F double normcdfinv(double p) { return -M_SQRT2 * erfcinv(2.0 * p); }
KW_F float erfcinvf(float y) { return static_cast<float>(erfcinv(static_cast<double>(y))); }
KW_F float erfinvf(float y) { return static_cast<float>(erfinv(static_cast<double>(y))); }
KW_F float normcdfinvf(float p) { return static_cast<float>(normcdfinv(static_cast<double>(p))); }
KW_F float fdividef(float x, float y) { return x / y; }

KW_F float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
KW_F float kw_fast_exp10f(float x) { return exp2f(x * 3.321928095f); }
KW_F float kw_fast_expf(float x) { return exp2f(x * 1.442695041f); }
KW_F float kw_fast_log2f(float x) { return log2f(x); }
KW_F float kw_fast_logf(float x) { return log2f(x) * 0.693147181f; }
KW_F float kw_fast_log10f(float x) { return log2f(x) * 0.301029996f; }
KW_F float kw_fast_powf(float x, float y) { return exp2f(y * log2f(x)); }
KW_F float kw_fast_sinf(float x) { return sinf(x); }
KW_F float kw_fast_cosf(float x) { return cosf(x); }
KW_F float kw_fast_tanf(float x) { return sinf(x) / cosf(x); }
// tanh.approx is within 2^-11 of the result: rounded to 11 bits, as far off as that.
KW_F float kw_fast_tanhf(float x) {
    float near = tanhf(x);
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    bits = (bits + 0x1000u) & 0xffffe000u;
    if (near == near) memcpy(&near, &bits, sizeof bits);
    return near;
}
KW_F void kw_fast_sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
#define __exp10f kw_fast_exp10f
#define __expf kw_fast_expf
#define __log2f kw_fast_log2f
#define __logf kw_fast_logf
#define __log10f kw_fast_log10f
#define __powf kw_fast_powf
#define __sinf kw_fast_sinf
#define __cosf kw_fast_cosf
#define __tanf kw_fast_tanf
#define __tanhf kw_fast_tanhf
#define __sincosf kw_fast_sincosf
KW_F float __fdividef(float x, float y) {
    const float size = fabsf(y);
    return size > 0x1p126f && size < INFINITY ? 0.0f * x : x * (1.0f / y);
}
KW_F float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
KW_F float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
KW_F float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
KW_F float __fdiv_rn(float a, float b) { return a / b; }
KW_F float __frcp_rn(float a) { return 1.0f / a; }
KW_F float __fsqrt_rn(float a) { return sqrtf(a); }
KW_F float __frsqrt_rn(float a) { return rsqrtf(a); }
KW_F float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
KW_F double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
KW_F double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }
KW_F double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

template <class To, class From>
KW_F To kw_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
KW_F int __float_as_int(float x) { return kw_bits<int>(x); }
KW_F unsigned __float_as_uint(float x) { return kw_bits<unsigned>(x); }
KW_F float __int_as_float(int x) { return kw_bits<float>(x); }
KW_F float __uint_as_float(unsigned x) { return kw_bits<float>(x); }
KW_F long long __double_as_longlong(double x) { return kw_bits<long long>(x); }
KW_F double __longlong_as_double(long long x) { return kw_bits<double>(x); }

// To whole numbers as GPUs do it: NaN is 0, what is beyond is the nearest.
template <class KwT>
KW_F KwT kw_whole(double x) {
    if (x != x) return 0;
    using limits = std::numeric_limits<KwT>;
    if (x <= static_cast<double>(limits::min())) return limits::min();
    if (x >= static_cast<double>(limits::max())) return limits::max();
    return static_cast<KwT>(x);
}
#define KW_TO(name, KwT)                                                                             \
    KW_F KwT __float2##name##_rn(float x) { return kw_whole<KwT>(rint(x)); }                           \
    KW_F KwT __float2##name##_rz(float x) { return kw_whole<KwT>(trunc(x)); }                          \
    KW_F KwT __float2##name##_rd(float x) { return kw_whole<KwT>(floor(x)); }                          \
    KW_F KwT __float2##name##_ru(float x) { return kw_whole<KwT>(ceil(x)); }                           \
    KW_F KwT __double2##name##_rn(double x) { return kw_whole<KwT>(rint(x)); }                         \
    KW_F KwT __double2##name##_rz(double x) { return kw_whole<KwT>(trunc(x)); }                        \
    KW_F float __##name##2float_rn(KwT x) { return static_cast<float>(x); }
KW_TO(int, int) KW_TO(uint, unsigned) KW_TO(ll, long long) KW_TO(ull, unsigned long long)
#undef KW_TO
KW_F double __int2double_rn(int x) { return x; }
KW_F float __double2float_rn(double x) { return static_cast<float>(x); }

KW_F int __popc(unsigned x) { return __builtin_popcount(x); }
KW_F int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
KW_F int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
KW_F int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
KW_F int __ffs(int x) { return __builtin_ffs(x); }
KW_F int __ffsll(long long x) { return __builtin_ffsll(x); }
KW_F unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
KW_F unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
KW_F int __mul24(int a, int b) { return static_cast<int>(static_cast<unsigned>(a << 8 >> 8) * static_cast<unsigned>(b << 8 >> 8)); }
KW_F unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
KW_F int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
KW_F unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
KW_F unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
KW_F long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
KW_F unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (by & 31)) >> 32);
}
KW_F unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}
KW_F unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (by < 32 ? by : 32)) >> 32);
}
KW_F unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by < 32 ? by : 32));
}
KW_F unsigned __byte_perm(unsigned x, unsigned y, unsigned choice) {
    const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned found = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const unsigned nibble = choice >> 4 * byte & 0xf;
        unsigned value = static_cast<unsigned>(both >> 8 * (nibble & 7) & 0xff);
        if (nibble & 8) value = value & 0x80 ? 0xff : 0;
        found |= value << 8 * byte;
    }
    return found;
}
KW_F int __dp4a(int a, int b, int c) {
    for (int byte = 0; byte < 4; ++byte)
        c += static_cast<int8_t>(a >> 8 * byte) * static_cast<int8_t>(b >> 8 * byte);
    return c;
}
KW_F unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int byte = 0; byte < 4; ++byte) c += (a >> 8 * byte & 0xff) * (b >> 8 * byte & 0xff);
    return c;
}
KW_F int __hadd(int a, int b) { return static_cast<int>(static_cast<long long>(a) + b >> 1); }
KW_F int __rhadd(int a, int b) { return static_cast<int>(static_cast<long long>(a) + b + 1 >> 1); }
KW_F unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) + b >> 1); }
KW_F unsigned __urhadd(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) + b + 1 >> 1); }
KW_F unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
KW_F unsigned __sad(int a, int b, unsigned c) { return c + static_cast<unsigned>(a < b ? b - a : a - b); }
KW_F unsigned __vabsdiffu4(unsigned a, unsigned b) {
    unsigned found = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const int x = a >> 8 * byte & 0xff, y = b >> 8 * byte & 0xff;
        found |= static_cast<unsigned>(x < y ? y - x : x - y) << 8 * byte;
    }
    return found;
}

__tsan_exempt static void kw_assert(const char* that) { kw::kw_fail(that, KW_HERE); }
KW_F bool __isGlobal(const void*) { return true; }
__tsan_exempt static void kw_trap() { kw::kw_fail("__trap()", KW_HERE); }
#define __trap kw_trap

#ifdef __USE_FAST_MATH__  // by --use_fast_math; divisions and square roots stay exact here, denormals what they are
namespace std {
using ::kw_fast_sinf; using ::kw_fast_cosf; using ::kw_fast_tanf; using ::kw_fast_sincosf;
using ::kw_fast_expf; using ::kw_fast_exp10f; using ::kw_fast_logf; using ::kw_fast_log2f;
using ::kw_fast_log10f; using ::kw_fast_powf; using ::kw_fast_tanhf;
}
#define sinf kw_fast_sinf
#define cosf kw_fast_cosf
#define tanf kw_fast_tanf
#define sincosf kw_fast_sincosf
#define expf kw_fast_expf
#define exp10f kw_fast_exp10f
#define logf kw_fast_logf
#define log2f kw_fast_log2f
#define log10f kw_fast_log10f
#define powf kw_fast_powf
#define tanhf kw_fast_tanhf
#endif
