// What a CPU can do at best, loop by loop. All threads work; times go from the first one's start to the last
// one's end, so that threads that did not run side by side do not look fast.
//
// copy, read and triad are those of J. D. McCalpin's STREAM (1995), with reads alone added.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <omp.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int64_t WIDTH = 64;
#elif defined(__AVX__)
constexpr int64_t WIDTH = 32;
#else
constexpr int64_t WIDTH = 16;
#endif
// Chains of dependent instructions, to cover latency times issue rate; they fit in the registers.
#if defined(__aarch64__)
constexpr int CHAINS = 24;
#else
constexpr int CHAINS = 12;
#endif
constexpr int64_t BLOCK = 256;  // bytes, that a loop goes through at once
constexpr int VECTORS = BLOCK / WIDTH;

typedef float Floats __attribute__((vector_size(WIDTH)));
typedef int32_t Bits __attribute__((vector_size(WIDTH)));

struct alignas(128) Counter {
    std::atomic<int64_t> value{0};
};
static Counter shared_counter;

static double now_s() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// The compiler takes memory for changed: no pass is left out, and no copy becomes a call of memcpy.
static inline void touched() { asm volatile("" ::: "memory"); }

static inline void stream(Floats* at, Floats value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(reinterpret_cast<float*>(at), reinterpret_cast<__m512>(value));
#elif defined(__AVX__)
    _mm256_stream_ps(reinterpret_cast<float*>(at), reinterpret_cast<__m256>(value));
#elif defined(__SSE__)
    _mm_stream_ps(reinterpret_cast<float*>(at), reinterpret_cast<__m128>(value));
#else
    *at = value;
#endif
}

struct Span {
    double first_start, last_start, first_end, last_end;

    double seconds() const { return last_end - first_start; }
    bool together() const { return first_end - last_start > 0.9 * seconds(); }
    // `count` of whatever was done, a second; as a negative number where threads were not at it together.
    double rate(double count) const { return (together() ? count : -count) / seconds(); }
};

// The values are computed, though nobody wants them. A copy: what `touched` may change stays in no register.
template <class Vector, int count>
static inline void wanted(const Vector (&values)[count]) {
    Vector kept[count];
    for (int k = 0; k < count; ++k) kept[k] = values[k];
    asm volatile("" ::"r"(kept) : "memory");
}

// All threads leave at once, awake: one that slept until the last came would begin after it.
static inline void meet(std::atomic<int64_t>& arrived, int64_t threads) {
    arrived.fetch_add(1);
    while (arrived.load() < threads) touched();
}

// `work(thread, threads)` on each thread, started together.
template <class Work>
static Span spanned(const Work& work) {
    constexpr double ever = std::numeric_limits<double>::infinity();
    double first_start = ever, last_start = -ever, first_end = ever, last_end = -ever;
    Counter arrived;
#pragma omp parallel reduction(min : first_start, first_end) reduction(max : last_start, last_end)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        meet(arrived.value, threads);
        const double start = now_s();
        work(thread, threads);
        const double end = now_s();
        first_start = last_start = start;
        first_end = last_end = end;
    }
    return {first_start, last_start, first_end, last_end};
}

// `work(from, to)` on each thread's share of the blocks, `passes` times. Bytes a second, see `Span::rate`.
template <class Work>
static double swept(int64_t blocks, int64_t passes, int64_t arrays, const Work& work) {
    const Span span = spanned([&](int64_t thread, int64_t threads) {
        const int64_t from = blocks * thread / threads * VECTORS;
        const int64_t to = blocks * (thread + 1) / threads * VECTORS;
        for (int64_t pass = 0; pass < passes; ++pass) work(from, to);
#if defined(__x86_64__)
        _mm_sfence();
#endif
    });
    return span.rate(double(arrays * blocks * BLOCK * passes));
}

template <bool streaming>
static inline void put(Floats* at, Floats value) {
    if (streaming)
        stream(at, value);
    else
        *at = value;
}

template <bool streaming>
static double copied(const float* a, float* b, int64_t blocks, int64_t passes) {
    const Floats* from_a = reinterpret_cast<const Floats*>(a);
    Floats* to_b = reinterpret_cast<Floats*>(b);
    return swept(blocks, passes, 2, [=](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i += VECTORS) {
            for (int64_t k = 0; k < VECTORS; ++k) put<streaming>(to_b + i + k, from_a[i + k]);
            touched();
        }
    });
}

template <bool streaming>
static double combined(const float* a, const float* b, float* c, int64_t blocks, int64_t passes) {
    const Floats* from_a = reinterpret_cast<const Floats*>(a);
    const Floats* from_b = reinterpret_cast<const Floats*>(b);
    Floats* to_c = reinterpret_cast<Floats*>(c);
    return swept(blocks, passes, 3, [=](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i += VECTORS) {
            for (int64_t k = 0; k < VECTORS; ++k)
                put<streaming>(to_c + i + k, from_a[i + k] + 0.5f * from_b[i + k]);
            touched();
        }
    });
}

// Operations a second of `step(chain)`, each of which does `operations`, with CHAINS chains on each thread.
template <class Vector, class Step>
static double computed(int64_t steps, int64_t operations, Vector first, const Step& step) {
    const Span span = spanned([&](int64_t, int64_t) {
        Vector chains[CHAINS];
        for (int k = 0; k < CHAINS; ++k) chains[k] = first;
        for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
            for (int k = 0; k < CHAINS; ++k) chains[k] = step(chains[k]);
        }
        wanted(chains);
    });
    return span.rate(double(steps) * double(operations * CHAINS * omp_get_max_threads()));
}

extern "C" int64_t vector_bits() { return 8 * WIDTH; }

extern "C" void nothing() {}

extern "C" void fill(float* a, int64_t blocks) {
    Floats* to = reinterpret_cast<Floats*>(a);
    swept(blocks, 1, 1, [=](int64_t from, int64_t end) {
        for (int64_t i = from; i < end; ++i) to[i] = Floats{} + 1.0f;
    });
}

// Bytes a second; negative where other programs kept threads from working together.
extern "C" double copy(const float* a, float* b, int64_t blocks, int64_t passes, bool streaming) {
    return streaming ? copied<true>(a, b, blocks, passes) : copied<false>(a, b, blocks, passes);
}

extern "C" double triad(const float* a, const float* b, float* c, int64_t blocks, int64_t passes,
                        bool streaming) {
    return streaming ? combined<true>(a, b, c, blocks, passes) : combined<false>(a, b, c, blocks, passes);
}

extern "C" double read(const float* a, int64_t blocks, int64_t passes) {
    const Bits* from_a = reinterpret_cast<const Bits*>(a);
    return swept(blocks, passes, 1, [=](int64_t from, int64_t to) {
        Bits seen = {};
        for (int64_t i = from; i < to; i += VECTORS) {
            Bits block = from_a[i];
#pragma GCC unroll 16
            for (int64_t k = 1; k < VECTORS; ++k) block |= from_a[i + k];
            seen |= block;  // not one of each: what `touched` may change, an array, would stay in memory
            touched();
        }
        const Bits all[] = {seen};
        wanted(all);
    });
}

// Operations a second, negative likewise; 0 where the CPU has no instructions for it.
extern "C" double fp32(int64_t steps, float factor) {
    const Floats times = Floats{} + factor;
    return computed(steps, 2 * WIDTH / 4, times, [=](Floats x) { return x * times + times; });
}

extern "C" double fp16(int64_t steps, float factor) {
#if defined(__AVX512FP16__)
    const __m512h times = _mm512_set1_ph(factor);
    return computed(steps, 64, times, [=](__m512h x) { return _mm512_fmadd_ph(x, times, times); });
#else
    return 0;
#endif
}

extern "C" double bf16(int64_t steps, float factor) {
#if defined(__AVX512BF16__)
    const __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factor), _mm512_set1_ps(factor));
    return computed(steps, 64, _mm512_setzero_ps(),
                    [=](__m512 x) { return _mm512_dpbf16_ps(x, pairs, pairs); });
#else
    return 0;
#endif
}

extern "C" double int8(int64_t steps, int32_t factor) {
#if defined(__AVX512VNNI__)
    const __m512i bytes = _mm512_set1_epi8(factor);
    return computed(steps, 128, _mm512_setzero_si512(),
                    [=](__m512i x) { return _mm512_dpbusd_epi32(x, bytes, bytes); });
#else
    return 0;
#endif
}

// Overheads are seconds for one.
extern "C" double parallel_region(int64_t times) {
    const double start = now_s();
    for (int64_t i = 0; i < times; ++i) {
#pragma omp parallel
        touched();
    }
    return (now_s() - start) / times;
}

extern "C" double barrier(int64_t times) {
    const Span span = spanned([=](int64_t, int64_t) {
        for (int64_t i = 0; i < times; ++i) {
#pragma omp barrier
        }
    });
    return span.seconds() / times;
}

extern "C" double atomic_add(int64_t times) {
    const double start = now_s();
    for (int64_t i = 0; i < times; ++i) shared_counter.value.fetch_add(1);
    return (now_s() - start) / times;
}

// All threads on one counter; below 0 where they were not at it together, another program being in the way.
extern "C" double contended_atomic_add(int64_t times) {
    const Span span = spanned([=](int64_t, int64_t) {
        for (int64_t i = 0; i < times; ++i) shared_counter.value.fetch_add(1);
    });
    return span.together() ? span.seconds() / times : -1;
}
