// Cooperative groups of a block: the block, tiles of a warp, and the threads that run together.
#pragma once
#include "simt.h"

namespace cooperative_groups {

struct thread_block {
    static void sync() { __syncthreads(); }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static unsigned thread_rank() {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
static inline thread_block this_thread_block() { return {}; }
static inline void sync(thread_block) { __syncthreads(); }

struct grid_group {
    static unsigned long long size() {
        return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z * thread_block::size();
    }
    static unsigned long long thread_rank() {
        const unsigned long long block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
        return block * thread_block::size() + thread_block::thread_rank();
    }
};
static inline grid_group this_grid() { return {}; }

template <unsigned N, class Parent = void>
class thread_block_tile {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "tiles are of 1, 2, 4, 8, 16 or 32 threads");
    static unsigned lane() { return kw_now->number % 32; }
    static unsigned mask() { return N == 32 ? 0xffffffffu : ((1u << N % 32) - 1) << lane() / N * N; }
    static unsigned mine(unsigned ballot) { return N == 32 ? ballot : ballot >> lane() / N * N & ((1u << N % 32) - 1); }

  public:
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    static unsigned thread_rank() { return lane() % N; }
    static unsigned meta_group_rank() { return kw_now->number / N; }
    static unsigned meta_group_size() { return (thread_block::size() + N - 1) / N; }
    void sync() const { __syncwarp(mask()); }
    template <class T> T shfl(T value, int from) const { return __shfl_sync(mask(), value, from, N); }
    template <class T> T shfl_down(T value, unsigned by) const { return __shfl_down_sync(mask(), value, by, N); }
    template <class T> T shfl_up(T value, unsigned by) const { return __shfl_up_sync(mask(), value, by, N); }
    template <class T> T shfl_xor(T value, unsigned by) const { return __shfl_xor_sync(mask(), value, static_cast<int>(by), N); }
    int any(int predicate) const { return __any_sync(mask(), predicate); }
    int all(int predicate) const { return __all_sync(mask(), predicate); }
    unsigned ballot(int predicate) const { return mine(__ballot_sync(mask(), predicate)); }
    template <class T> unsigned match_any(T value) const { return mine(__match_any_sync(mask(), value)); }
};
template <unsigned N, class Parent>
static inline thread_block_tile<N, Parent> tiled_partition(const Parent&) { return {}; }

class coalesced_group {
    unsigned mask_;

  public:
    explicit coalesced_group(unsigned mask) : mask_(mask) {}
    unsigned size() const { return __popc(mask_); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return __popc(mask_ & ((1u << kw_now->number % 32) - 1)); }
    void sync() const { __syncwarp(mask_); }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    template <class T> T shfl(T value, unsigned rank) const {
        unsigned left = mask_;
        for (; rank; --rank) left &= left - 1;
        return __shfl_sync(mask_, value, __ffs(static_cast<int>(left)) - 1);
    }
};
static inline __attribute__((always_inline)) coalesced_group coalesced_threads() {
    return coalesced_group(__activemask());
}

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

template <unsigned N, class P, class T, class F>
static inline T reduce(const thread_block_tile<N, P>& tile, T value, F join) {
    for (unsigned by = N / 2; by; by /= 2) value = join(value, tile.shfl_xor(value, by));
    return value;
}

}  // namespace cooperative_groups
