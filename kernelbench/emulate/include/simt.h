// CUDA C++ for g++: what a kernel's source sees in place of CUDA's own headers. Each thread of a block is a
// fiber (simt.cpp); __shared__ is the memory of the operating-system thread that runs the block.
#pragma once

// Kernels have no use for Bessel functions and parallel algorithms, which take as long to read as all else.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <bits/stl_algobase.h>

#include "assert.h"
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <utility>

#pragma GCC diagnostic ignored "-Wunknown-pragmas"

#define __global__ __attribute__((noinline, used))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __CUDA_ARCH__ 900
#define __CUDACC__ 1
#define __NVCC__ 1
#define CUDART_VERSION 13000

#define __tsan_exempt __attribute__((no_sanitize("thread"), noinline))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Vectors, aligned as CUDA's are.
#define KW_VECTOR(KwT, name, align2, align4)                                                         \
    struct name##1 { KwT x; };                                                                       \
    struct __attribute__((aligned(align2))) name##2 { KwT x, y; };                                   \
    struct name##3 { KwT x, y, z; };                                                                 \
    struct __attribute__((aligned(align4))) name##4 { KwT x, y, z, w; };                             \
    static inline name##1 make_##name##1(KwT x) { return {x}; }                                      \
    static inline name##2 make_##name##2(KwT x, KwT y) { return {x, y}; }                              \
    static inline name##3 make_##name##3(KwT x, KwT y, KwT z) { return {x, y, z}; }                      \
    static inline name##4 make_##name##4(KwT x, KwT y, KwT z, KwT w) { return {x, y, z, w}; }
KW_VECTOR(signed char, char, 2, 4)
KW_VECTOR(unsigned char, uchar, 2, 4)
KW_VECTOR(short, short, 4, 8)
KW_VECTOR(unsigned short, ushort, 4, 8)
KW_VECTOR(int, int, 8, 16)
KW_VECTOR(unsigned int, uint, 8, 16)
KW_VECTOR(long, long, 16, 16)
KW_VECTOR(unsigned long, ulong, 16, 16)
KW_VECTOR(long long, longlong, 16, 16)
KW_VECTOR(unsigned long long, ulonglong, 16, 16)
KW_VECTOR(float, float, 8, 16)
KW_VECTOR(double, double, 16, 16)
#undef KW_VECTOR

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

namespace kw {

struct Thread {
    uint3 index, block;
    dim3 block_dim, grid_dim;
    unsigned number;  // in the block
};

// What simt.cpp has; `at` says where in the source, by the address that a call returns to.
extern "C" {
void kw_block_barrier(void* at, int which, int kind, int predicate, int* result);
void kw_warp_exchange(void* at, unsigned mask, const void* mine, size_t bytes, void* all, unsigned* there);
unsigned kw_active_mask(void* at);
void kw_touch(const void* address, size_t bytes, int kind, void* at);  // kind: 0 read, 1 write, 2 atomic
void kw_fail(const char* what, void* at);
}

}  // namespace kw

// The thread that runs, in a register that nothing else uses (-ffixed-r15).
register kw::Thread* kw_now asm("r15");

#define threadIdx (kw_now->index)
#define blockIdx (kw_now->block)
#define blockDim (kw_now->block_dim)
#define gridDim (kw_now->grid_dim)
static constexpr int warpSize = 32;

namespace kw {

#define KW_HERE __builtin_extract_return_addr(__builtin_return_address(0))

// `which`: of the source's barriers, for the compiler may have copied the call.
__tsan_exempt static void barrier(int which, int kind, int predicate, int* result) {
    kw_block_barrier(KW_HERE, which, kind, predicate, result);
}

// Calls a kernel with what `given` points to.
template <class... KwA, size_t... KwI>
__tsan_exempt static void call(void (*kernel)(KwA...), void** given, std::index_sequence<KwI...>) {
    kernel(*static_cast<std::remove_reference_t<KwA>*>(given[KwI])...);
}
template <class... KwA>
__tsan_exempt static void call(void (*kernel)(KwA...), void** given) {
    call(kernel, given, std::index_sequence_for<KwA...>());
}

template <class KwT>
__tsan_exempt static void exchange(void* at, unsigned mask, KwT mine, KwT* all, unsigned* there) {
    static_assert(std::is_trivially_copyable<KwT>::value, "what warps exchange must be plain");
    kw_warp_exchange(at, mask, &mine, sizeof(KwT), all, there);
}

}  // namespace kw

// Barriers. They are calls that the compiler knows nothing of, so nothing is kept in registers across them.
#define __syncthreads() kw::barrier(__COUNTER__, 0, 0, nullptr)
static inline __attribute__((always_inline)) int kw_voted(int which, int kind, int predicate) {
    int result = 0;
    kw::barrier(which, kind, predicate != 0, &result);
    return result;
}
#define __syncthreads_count(predicate) kw_voted(__COUNTER__, 1, (predicate) != 0)
#define __syncthreads_and(predicate) kw_voted(__COUNTER__, 2, (predicate) != 0)
#define __syncthreads_or(predicate) kw_voted(__COUNTER__, 3, (predicate) != 0)

__tsan_exempt static void kw_syncwarp(unsigned mask) { kw::kw_warp_exchange(KW_HERE, mask, 0, 0, 0, 0); }
static __forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) { kw_syncwarp(mask); }
static inline void __threadfence() { __sync_synchronize(); }
static inline void __threadfence_block() { __sync_synchronize(); }
static inline void __threadfence_system() { __sync_synchronize(); }

// Warps.
enum KwShuffle { KW_INDEX, KW_UP, KW_DOWN, KW_XOR };
template <class KwT>
__tsan_exempt static KwT kw_shuffle(unsigned mask, KwT value, int by, int width, KwShuffle how) {
    KwT all[32];
    unsigned there = 0;
    kw::exchange(KW_HERE, mask, value, all, &there);
    const int lane = kw_now->number % 32;
    const int first = lane / width * width;
    int from = lane;
    if (how == KW_INDEX) from = first + (by & (width - 1));
    if (how == KW_UP) from = lane - first >= by ? lane - by : lane;
    if (how == KW_DOWN) from = lane - first + by < width ? lane + by : lane;
    if (how == KW_XOR) from = (lane ^ by) < first + width ? lane ^ by : lane;
    if (!(there >> from & 1)) kw::kw_fail("a shuffle reads a lane that does not take part in it", KW_HERE);
    return all[from];
}
#define KW_SHUFFLE(name, how, last)                                                                \
    template <class KwT>                                                                             \
    static __forceinline__ KwT name(unsigned mask, KwT value, last by, int width = 32) {               \
        return kw_shuffle(mask, value, static_cast<int>(by), width, how);                          \
    }
KW_SHUFFLE(__shfl_sync, KW_INDEX, int)
KW_SHUFFLE(__shfl_up_sync, KW_UP, unsigned)
KW_SHUFFLE(__shfl_down_sync, KW_DOWN, unsigned)
KW_SHUFFLE(__shfl_xor_sync, KW_XOR, int)
#undef KW_SHUFFLE

__tsan_exempt static unsigned kw_ballot(unsigned mask, int predicate, unsigned* among) {
    int all[32];
    unsigned there = 0, found = 0;
    kw::exchange(KW_HERE, mask, predicate, all, &there);
    for (int lane = 0; lane < 32; ++lane)
        if ((there >> lane & 1) && all[lane]) found |= 1u << lane;
    *among = there;
    return found;
}
static __forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned among;
    return kw_ballot(mask, predicate, &among);
}
static __forceinline__ int __any_sync(unsigned mask, int predicate) {
    unsigned among;
    return kw_ballot(mask, predicate, &among) != 0;
}
static __forceinline__ int __all_sync(unsigned mask, int predicate) {
    unsigned among;
    return kw_ballot(mask, !predicate, &among) == 0;
}
template <class KwT>
__tsan_exempt static unsigned kw_match(unsigned mask, KwT value) {
    KwT all[32];
    unsigned there = 0, found = 0;
    kw::exchange(KW_HERE, mask, value, all, &there);
    for (int lane = 0; lane < 32; ++lane)
        if ((there >> lane & 1) && memcmp(&all[lane], &value, sizeof(KwT)) == 0) found |= 1u << lane;
    return found;
}
template <class KwT>
static __forceinline__ unsigned __match_any_sync(unsigned mask, KwT value) { return kw_match(mask, value); }
template <class KwT>
static __forceinline__ unsigned __match_all_sync(unsigned mask, KwT value, int* all) {
    const unsigned found = kw_match(mask, value);
    *all = found == mask;
    return *all ? mask : 0;
}
static __forceinline__ unsigned __activemask() { return kw::kw_active_mask(KW_HERE); }

template <class KwT, class KwF>
__tsan_exempt static KwT kw_reduce(unsigned mask, KwT value, KwF join) {
    KwT all[32];
    unsigned there = 0;
    bool begun = false;
    KwT found = value;
    kw::exchange(KW_HERE, mask, value, all, &there);
    for (int lane = 0; lane < 32; ++lane)
        if (there >> lane & 1) found = begun ? join(found, all[lane]) : all[lane], begun = true;
    return found;
}
#define KW_REDUCE(name, KwT, result)                                                                 \
    static __forceinline__ KwT name(unsigned mask, KwT value) {                                        \
        return kw_reduce(mask, value, [](KwT a, KwT b) { return result; });                            \
    }
KW_REDUCE(__reduce_add_sync, unsigned, a + b)
KW_REDUCE(__reduce_add_sync, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
KW_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
KW_REDUCE(__reduce_min_sync, int, a < b ? a : b)
KW_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
KW_REDUCE(__reduce_max_sync, int, a > b ? a : b)
KW_REDUCE(__reduce_and_sync, unsigned, a & b)
KW_REDUCE(__reduce_or_sync, unsigned, a | b)
KW_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef KW_REDUCE

// Atomics: one after the other, across blocks too.
template <class KwT, class KwF>
__tsan_exempt static KwT kw_atomic(KwT* address, KwF change) {
    kw::kw_touch(address, sizeof(KwT), 2, KW_HERE);
    using Bits = std::conditional_t<sizeof(KwT) == 2, uint16_t, std::conditional_t<sizeof(KwT) == 4, uint32_t, uint64_t>>;
    static_assert(sizeof(KwT) == sizeof(Bits), "atomics are of 16, 32 or 64 bits");
    Bits* const bits = reinterpret_cast<Bits*>(address);
    Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED);
    for (;;) {
        KwT old, changed;
        memcpy(&old, &before, sizeof(KwT));
        changed = change(old);
        Bits after;
        memcpy(&after, &changed, sizeof(KwT));
        if (__atomic_compare_exchange_n(bits, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
    }
}
#define KW_ATOMIC(name, result)                                                                    \
    template <class KwT>                                                                             \
    static __forceinline__ KwT name(KwT* address, std::common_type_t<KwT> value) {                       \
        return kw_atomic(address, [value](KwT old) -> KwT { return result; });                         \
    }                                                                                              \
    template <class KwT>                                                                             \
    static __forceinline__ KwT name##_block(KwT* address, std::common_type_t<KwT> value) {               \
        return name(address, value);                                                               \
    }
KW_ATOMIC(atomicAdd, old + value)
KW_ATOMIC(atomicSub, old - value)
KW_ATOMIC(atomicExch, value)
KW_ATOMIC(atomicMin, old < value ? old : value)
KW_ATOMIC(atomicMax, old > value ? old : value)
KW_ATOMIC(atomicInc, old >= value ? KwT(0) : KwT(old + 1))
KW_ATOMIC(atomicDec, old == KwT(0) || old > value ? value : KwT(old - 1))
KW_ATOMIC(atomicAnd, old & value)
KW_ATOMIC(atomicOr, old | value)
KW_ATOMIC(atomicXor, old ^ value)
#undef KW_ATOMIC
template <class KwT>
static __forceinline__ KwT atomicCAS(KwT* address, std::common_type_t<KwT> compare, std::common_type_t<KwT> value) {
    return kw_atomic(address, [compare, value](KwT old) -> KwT { return old == compare ? value : old; });
}

// Loads and stores with hints are loads and stores.
#define KW_LOAD(name) \
    template <class KwT> static __forceinline__ KwT name(const KwT* address) { return *address; }
KW_LOAD(__ldg) KW_LOAD(__ldcg) KW_LOAD(__ldca) KW_LOAD(__ldcs) KW_LOAD(__ldlu) KW_LOAD(__ldcv)
#undef KW_LOAD
#define KW_STORE(name) \
    template <class KwT> static __forceinline__ void name(KwT* address, KwT value) { *address = value; }
KW_STORE(__stwb) KW_STORE(__stcg) KW_STORE(__stcs) KW_STORE(__stwt)
#undef KW_STORE

#include "simt_math.h"
