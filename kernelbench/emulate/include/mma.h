// Products of warps on tensor cores. Which thread holds which element of a fragment is not told by CUDA, and is
// another one here. Sums are in fp32, one product after the other.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

enum layout_t { mem_row_major, mem_col_major };
struct row_major { static constexpr layout_t value = mem_row_major; };
struct col_major { static constexpr layout_t value = mem_col_major; };
struct matrix_a {
    template <int KwM, int KwN, int KwK> static constexpr int rows() { return KwM; }
    template <int KwM, int KwN, int KwK> static constexpr int columns() { return KwK; }
};
struct matrix_b {
    template <int KwM, int KwN, int KwK> static constexpr int rows() { return KwK; }
    template <int KwM, int KwN, int KwK> static constexpr int columns() { return KwN; }
};
struct accumulator {
    template <int KwM, int KwN, int KwK> static constexpr int rows() { return KwM; }
    template <int KwM, int KwN, int KwK> static constexpr int columns() { return KwN; }
};
namespace precision { struct tf32 {}; }

template <class KwT> struct kw_storage { using type = KwT; };
template <> struct kw_storage<precision::tf32> { using type = float; };

// Element e of lane l is number e * 32 + l, row by row.
template <class Use, int KwM, int KwN, int KwK, class KwT, class Layout = void>
struct fragment {
    using element_type = KwT;
    using storage_element_type = typename kw_storage<KwT>::type;
    static constexpr int kw_columns = Use::template columns<KwM, KwN, KwK>();
    static constexpr int num_elements = Use::template rows<KwM, KwN, KwK>() * kw_columns / 32;
    static constexpr int num_storage_elements = num_elements;
    storage_element_type x[num_elements];
};

// Rounds to the nearest, and what lies between two away from zero.
static inline float __float_to_tf32(float x) {
    const uint32_t bits = kw_bits<uint32_t>(x);
    return x != x || isinf(x) ? x : kw_bits<float>((bits + 0x1000u) & 0xffffe000u);
}

// What the tensor cores read of an operand: of a float the bits of TF32, whether it was rounded or not.
template <class KwT> static inline float kw_operand(KwT x, KwT*) { return static_cast<float>(x); }
static inline float kw_operand(float x, precision::tf32*) { return kw_bits<float>(kw_bits<uint32_t>(x) & 0xffffe000u); }
static inline double kw_operand(double x, double*) { return x; }
static inline int kw_operand(signed char x, signed char*) { return x; }
static inline int kw_operand(char x, char*) { return x; }
static inline int kw_operand(unsigned char x, unsigned char*) { return x; }

__tsan_exempt static void kw_whole_warp(void* at) {
    char all[32];
    unsigned there = 0;
    kw::exchange(at, 0xffffffffu, '\0', all, &there);
    if (there != 0xffffffffu) kw::kw_fail("wmma needs all 32 threads of the warp", at);
}

template <class KwT>
__tsan_exempt static void kw_check(const KwT* pointer, unsigned stride, void* at) {
    kw_whole_warp(at);
    if (reinterpret_cast<uintptr_t>(pointer) % 16 || stride * sizeof(KwT) % 16)
        kw::kw_fail("wmma loads and stores rows that begin at multiples of 16 bytes", at);
}

template <class KwF>
static inline size_t kw_place(int element, unsigned stride, layout_t layout) {
    const int number = element * 32 + kw_now->number % 32;
    const size_t row = number / KwF::kw_columns, column = number % KwF::kw_columns;
    return layout == mem_row_major ? row * stride + column : column * stride + row;
}

// Names begin with kw, by which building.py knows the calls whose lines findings name.
template <class KwF, class KwT>
__tsan_exempt static void kw_load(KwF& to, const KwT* from, unsigned stride, layout_t layout) {
    kw_check(from, stride, KW_HERE);
    for (int i = 0; i < KwF::num_elements; ++i) {
        const KwT* const address = from + kw_place<KwF>(i, stride, layout);
        kw::kw_touch(address, sizeof(KwT), 0, KW_HERE);
        to.x[i] = *address;
    }
}

template <class Use, int KwM, int KwN, int KwK, class KwT, class Layout, class KwS>
static __forceinline__ void load_matrix_sync(fragment<Use, KwM, KwN, KwK, KwT, Layout>& to, const KwS* from, unsigned stride) {
    kw_load(to, from, stride, Layout::value);
}
template <int KwM, int KwN, int KwK, class KwT>
static __forceinline__ void load_matrix_sync(fragment<accumulator, KwM, KwN, KwK, KwT>& to, const KwT* from, unsigned stride,
                                             layout_t layout) {
    kw_load(to, from, stride, layout);
}

template <class KwF, class KwT>
__tsan_exempt static void kw_store(KwT* to, const KwF& from, unsigned stride, layout_t layout) {
    kw_check(to, stride, KW_HERE);
    for (int i = 0; i < KwF::num_elements; ++i) {
        KwT* const address = to + kw_place<KwF>(i, stride, layout);
        kw::kw_touch(address, sizeof(KwT), 1, KW_HERE);
        *address = from.x[i];
    }
}
template <int KwM, int KwN, int KwK, class KwT>
static __forceinline__ void store_matrix_sync(KwT* to, const fragment<accumulator, KwM, KwN, KwK, KwT>& from, unsigned stride,
                                              layout_t layout) {
    kw_store(to, from, stride, layout);
}

template <class Use, int KwM, int KwN, int KwK, class KwT, class Layout, class KwV>
static inline void fill_fragment(fragment<Use, KwM, KwN, KwK, KwT, Layout>& to, const KwV& value) {
    for (auto& each : to.x) each = value;
}

template <int KwM, int KwN, int KwK, class KwD, class KwC, class KwT, class LayoutA, class LayoutB>
__tsan_exempt static void kw_multiply(fragment<accumulator, KwM, KwN, KwK, KwD>& to,
                                      const fragment<matrix_a, KwM, KwN, KwK, KwT, LayoutA>& a,
                                      const fragment<matrix_b, KwM, KwN, KwK, KwT, LayoutB>& b,
                                      const fragment<accumulator, KwM, KwN, KwK, KwC>& c) {
    struct Operands { fragment<matrix_a, KwM, KwN, KwK, KwT, LayoutA> a; fragment<matrix_b, KwM, KwN, KwK, KwT, LayoutB> b; };
    Operands all[32];
    unsigned there = 0;
    kw::exchange(KW_HERE, 0xffffffffu, Operands{a, b}, all, &there);
    if (there != 0xffffffffu) kw::kw_fail("wmma needs all 32 threads of the warp", KW_HERE);
    KwT* const kind = nullptr;
    for (int i = 0; i < to.num_elements; ++i) {
        const int number = i * 32 + kw_now->number % 32, row = number / KwN, column = number % KwN;
        auto sum = static_cast<decltype(kw_operand(a.x[0], kind))>(c.x[i]);
        for (int k = 0; k < KwK; ++k) {
            const int in_a = row * KwK + k, in_b = k * KwN + column;
            sum += kw_operand(all[in_a % 32].a.x[in_a / 32], kind) * kw_operand(all[in_b % 32].b.x[in_b / 32], kind);
        }
        to.x[i] = sum;
    }
}
template <int KwM, int KwN, int KwK, class KwD, class KwC, class KwT, class LayoutA, class LayoutB>
static __forceinline__ void mma_sync(fragment<accumulator, KwM, KwN, KwK, KwD>& to,
                                     const fragment<matrix_a, KwM, KwN, KwK, KwT, LayoutA>& a,
                                     const fragment<matrix_b, KwM, KwN, KwK, KwT, LayoutB>& b,
                                     const fragment<accumulator, KwM, KwN, KwK, KwC>& c, bool = false) {
    kw_multiply(to, a, b, c);
}

}  // namespace wmma
}  // namespace nvcuda
