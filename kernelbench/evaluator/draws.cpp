// Random numbers for large inputs, many times as fast as torch's serial generator: element i hashes
// (i, seed), so the loop is free of dependences. The hash is Chris Wellons' lowbias32 with a key before and
// one within; normals follow Box and Muller (1958).
//
// Logarithm and sine are polynomials, good to 1e-5, because g++ does not vectorise a loop that calls both
// sine and cosine of the standard library.
#include <cmath>
#include <cstdint>
#include <cstring>

static inline uint32_t bits(uint32_t i, uint32_t key0, uint32_t key1) {
    uint32_t x = i ^ key0;
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x += key1;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

// Natural logarithm of a normal positive number: exponent, and a Chebyshev fit of log(1 + t) for t in [-1/3, 1/3].
static inline float logarithm(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    const uint32_t shifted = word - 0x3f2aaaabU;  // so that the mantissa lies in [2/3, 4/3)
    const float exponent = (float)((int32_t)shifted >> 23);
    const uint32_t mant = (shifted & 0x007fffffU) + 0x3f2aaaabU;
    float m;
    std::memcpy(&m, &mant, 4);
    const float t = m - 1.0f;
    const float high = 0.197950298f + t * (-0.194078572f + t * 0.171112269f);
    const float series = t * (0.999999836f + t * (-0.500022431f + t * (0.33337989f + t * (-0.248416347f + t * high))));
    return exponent * 0.69314718f + series;
}

// sin(2 pi t) for t in [-0.5, 0.5]: fold into a quarter turn, then the Taylor series.
static inline float sine_of_turns(float t) {
    const float size = std::fabs(t);
    const float x = std::copysign(6.2831853f * (size > 0.25f ? 0.5f - size : size), t), x2 = x * x;
    return x * (1.0f - x2 * (0.16666667f - x2 * (8.3333333e-3f - x2 * (1.9841270e-4f - x2 * 2.7557319e-6f))));
}

// out[i] in [0, 1), 24 random bits each.
extern "C" void fill_uniform(float* out, int64_t n, int64_t seed) {
    const uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) out[i] = (bits((uint32_t)i, key0, key1) >> 8) * 0x1p-24f;
}

// out[i] standard normal, up to about 6.6 in size; i and i + n/2 come from one pair of uniforms.
extern "C" void fill_normal(float* out, int64_t n, int64_t seed) {
    const uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    const int64_t half = n / 2;
#pragma omp parallel for simd
    for (int64_t i = 0; i < half; ++i) {
        const float u = (bits((uint32_t)i, key0, key1) + 0.5f) * 0x1p-32f;
        const float turns = (bits((uint32_t)i, key1, ~key0) >> 8) * 0x1p-24f - 0.5f;
        const float quarter = turns > 0.25f ? turns - 0.75f : turns + 0.25f;
        const float radius = std::sqrt(-2.0f * logarithm(u));
        out[i] = radius * sine_of_turns(quarter);
        out[i + half] = radius * sine_of_turns(turns);
    }
    if (n % 2) out[n - 1] = 2.0f * (bits((uint32_t)n, key0, key1) >> 8) * 0x1p-24f - 1.0f;
}
