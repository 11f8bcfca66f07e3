#pragma once
#include "host.h"
// Functions of math by one name for all types of floating-point numbers.
namespace c10::cuda::compat {
#define KW_COMPAT(name) \
    static inline float name(float x) { return ::name##f(x); } \
    static inline double name(double x) { return ::name(x); }
KW_COMPAT(ceil) KW_COMPAT(floor) KW_COMPAT(exp) KW_COMPAT(log) KW_COMPAT(log1p) KW_COMPAT(rsqrt) KW_COMPAT(sqrt)
KW_COMPAT(tanh) KW_COMPAT(tan) KW_COMPAT(sin) KW_COMPAT(cos) KW_COMPAT(erf)
#undef KW_COMPAT
static inline float abs(float x) { return ::fabsf(x); }
static inline double abs(double x) { return ::fabs(x); }
static inline float pow(float x, float y) { return ::powf(x, y); }
static inline double pow(double x, double y) { return ::pow(x, y); }
template <class KwT> static inline KwT max(KwT a, KwT b) { return a > b ? a : b; }
template <class KwT> static inline KwT min(KwT a, KwT b) { return a < b ? a : b; }
}  // namespace c10::cuda::compat
