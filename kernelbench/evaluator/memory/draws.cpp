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

// Taylor series for x in [0, pi/2].
static inline float sine(float x) {
    const float x2 = x * x;
    return x * (1.0f - x2 * (0.16666667f - x2 * (8.3333333e-3f - x2 * (1.9841270e-4f - x2 * 2.7557319e-6f))));
}

static inline float cosine(float x) {
    const float x2 = x * x, high = 1.3888889e-3f - x2 * (2.4801587e-5f - x2 * 2.7557319e-7f);
    return 1.0f - x2 * (0.5f - x2 * (4.1666667e-2f - x2 * high));
}

// `value`, negative where the top bit of `word` is set.
static inline float with_sign(float value, uint32_t word) {
    uint32_t content;
    std::memcpy(&content, &value, 4);
    content ^= word & 0x80000000U;
    std::memcpy(&value, &content, 4);
    return value;
}

// out[i] in [0, 1), 24 random bits each.
extern "C" void fill_uniform(float* out, int64_t n, int64_t seed) {
    const uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) out[i] = (bits((uint32_t)i, key0, key1) >> 8) * 0x1p-24f;
}

// out[i] in [0, limit), for a limit far below 2^32: the high half of hash x limit (Lemire 2019).
extern "C" void fill_below(int64_t* out, int64_t n, int64_t limit, int64_t seed) {
    const uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) out[i] = (int64_t)(((uint64_t)bits((uint32_t)i, key0, key1) * (uint64_t)limit) >> 32);
}

// out[i] standard normal, up to about 6.7 in size; i and i + n/2 come from one hash: its low 16 bits are an
// angle within a quarter turn and two signs, all 32 the radius, which the low ones hardly move.
extern "C" void fill_normal(float* out, int64_t n, int64_t seed) {
    const uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    const int64_t half = n / 2;
#pragma omp parallel for simd
    for (int64_t i = 0; i < half; ++i) {
        const uint32_t word = bits((uint32_t)i, key0, key1);
        const float radius = std::sqrt(-2.0f * logarithm((word + 0.5f) * 0x1p-32f));
        const float angle = ((int32_t)(word & 0x3fffU) + 0.5f) * (1.5707963f * 0x1p-14f);
        out[i] = with_sign(radius * sine(angle), word << 16);
        out[i + half] = with_sign(radius * cosine(angle), word << 17);
    }
    if (n % 2) out[n - 1] = 2.0f * (bits((uint32_t)n, key0, key1) >> 8) * 0x1p-24f - 1.0f;
}
