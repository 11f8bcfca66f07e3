// Cooperative groups of a block: the block, tiles of a warp, and the threads that run together.
#pragma once
#include "simt.h"

namespace cooperative_groups {

struct thread_block {
    static void sync(int line = __builtin_LINE()) { kw::barrier(-line, 0, 0, nullptr); }
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
static inline void sync(thread_block, int line = __builtin_LINE()) { kw::barrier(-line, 0, 0, nullptr); }

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

// Threads of one warp; `Group` says which.
template <class Group>
class of_warp {
    const Group& self() const { return static_cast<const Group&>(*this); }
    unsigned lane_of(unsigned rank) const {
        unsigned left = self().mask();
        for (; rank; --rank) left &= left - 1;
        return __ffs(static_cast<int>(left)) - 1;
    }
    template <class KwT> KwT from(unsigned rank, KwT value) const {
        return __shfl_sync(self().mask(), value, static_cast<int>(lane_of(rank)));
    }

  protected:
    // Of a ballot of the whole warp, the bits of this group, by their ranks.
    unsigned mine(unsigned ballot) const {
        unsigned found = 0, rank = 0;
        for (unsigned left = self().mask(); left; left &= left - 1, ++rank)
            found |= (ballot >> (__ffs(static_cast<int>(left)) - 1) & 1) << rank;
        return found;
    }

  public:
    unsigned size() const { return __popc(self().mask()); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return __popc(self().mask() & ((1u << kw_now->number % 32) - 1)); }
    void sync() const { __syncwarp(self().mask()); }
    int any(int predicate) const { return __any_sync(self().mask(), predicate); }
    int all(int predicate) const { return __all_sync(self().mask(), predicate); }
    unsigned ballot(int predicate) const { return mine(__ballot_sync(self().mask(), predicate)); }
    template <class KwT> unsigned match_any(KwT value) const { return mine(__match_any_sync(self().mask(), value)); }
    template <class KwT> unsigned match_all(KwT value, int& all) const { return mine(__match_all_sync(self().mask(), value, &all)); }
    template <class KwT> KwT shfl(KwT value, unsigned rank) const { return from(rank % size(), value); }
    template <class KwT> KwT shfl_down(KwT value, unsigned by) const {
        const unsigned rank = thread_rank();
        return from(rank + by < size() ? rank + by : rank, value);
    }
    template <class KwT> KwT shfl_up(KwT value, unsigned by) const {
        const unsigned rank = thread_rank();
        return from(rank >= by ? rank - by : rank, value);
    }
};

template <unsigned KwN, class Parent = void>
class thread_block_tile : public of_warp<thread_block_tile<KwN, Parent>> {
    static_assert(KwN >= 1 && KwN <= 32 && (KwN & (KwN - 1)) == 0, "tiles are of 1, 2, 4, 8, 16 or 32 threads");
    static unsigned lane() { return kw_now->number % 32; }

  public:
    thread_block_tile() = default;
    template <class Other> thread_block_tile(thread_block_tile<KwN, Other>) {}
    static unsigned mask() { return KwN == 32 ? 0xffffffffu : ((1u << KwN % 32) - 1) << lane() / KwN * KwN; }
    static constexpr unsigned size() { return KwN; }
    static constexpr unsigned num_threads() { return KwN; }
    static unsigned thread_rank() { return lane() % KwN; }
    static unsigned meta_group_rank() { return kw_now->number / KwN; }
    static unsigned meta_group_size() { return (thread_block::size() + KwN - 1) / KwN; }
    template <class KwT> KwT shfl(KwT value, int from) const { return __shfl_sync(mask(), value, from, KwN); }
    template <class KwT> KwT shfl_down(KwT value, unsigned by) const { return __shfl_down_sync(mask(), value, by, KwN); }
    template <class KwT> KwT shfl_up(KwT value, unsigned by) const { return __shfl_up_sync(mask(), value, by, KwN); }
    template <class KwT> KwT shfl_xor(KwT value, unsigned by) const { return __shfl_xor_sync(mask(), value, static_cast<int>(by), KwN); }
};
template <unsigned KwN, class Parent>
static inline thread_block_tile<KwN, Parent> tiled_partition(const Parent&) { return {}; }

class coalesced_group : public of_warp<coalesced_group> {
    unsigned mask_, rank_ = 0, count_ = 1;

  public:
    explicit coalesced_group(unsigned mask, unsigned rank = 0, unsigned count = 1) : mask_(mask), rank_(rank), count_(count) {}
    unsigned mask() const { return mask_; }
    unsigned meta_group_rank() const { return rank_; }
    unsigned meta_group_size() const { return count_; }
};
static inline __attribute__((always_inline)) coalesced_group coalesced_threads() {
    return coalesced_group(__activemask());
}
// Those of a group that give the same label.
template <class Group, class Label>
static inline coalesced_group labeled_partition(const Group& group, Label label) {
    return coalesced_group(__match_any_sync(group.mask(), label));
}
template <class Group>
static inline coalesced_group binary_partition(const Group& group, bool which) {
    return labeled_partition(group, static_cast<int>(which));
}

// A group whose size is known when it runs only: a block, or a tile of a warp.
class thread_group : public of_warp<thread_group> {
    unsigned size_;  // 0 for a block

  public:
    explicit thread_group(unsigned size) : size_(size) {}
    thread_group(thread_block) : size_(0) {}
    unsigned mask() const { return size_ == 32 ? 0xffffffffu : ((1u << size_ % 32) - 1) << kw_now->number % 32 / size_ * size_; }
    unsigned size() const { return size_ ? size_ : thread_block::size(); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return size_ ? kw_now->number % size_ : thread_block::thread_rank(); }
    void sync(int line = __builtin_LINE()) const {
        if (size_) __syncwarp(mask());
        else kw::barrier(-line, 0, 0, nullptr);
    }
};
static inline thread_group tiled_partition(const thread_block&, unsigned size) { return thread_group(size); }
template <class Group> static inline void sync(const Group& group) { group.sync(); }

template <class KwT> struct plus { KwT operator()(KwT a, KwT b) const { return a + b; } };
template <class KwT> struct less { KwT operator()(KwT a, KwT b) const { return b < a ? b : a; } };
template <class KwT> struct greater { KwT operator()(KwT a, KwT b) const { return a < b ? b : a; } };
template <class KwT> struct bit_and { KwT operator()(KwT a, KwT b) const { return a & b; } };
template <class KwT> struct bit_or { KwT operator()(KwT a, KwT b) const { return a | b; } };
template <class KwT> struct bit_xor { KwT operator()(KwT a, KwT b) const { return a ^ b; } };

// All of a group in its order, each with what those before it come to.
template <class Group, class KwT, class KwF>
static inline KwT kw_scan(const Group& group, KwT value, KwF join, KwT* before) {
    KwT found = value;
    const unsigned rank = group.thread_rank();
    for (unsigned by = 1; by < group.size(); by *= 2) {
        const KwT other = group.shfl_up(found, by);
        if (rank >= by) found = join(other, found);
    }
    const KwT last = group.shfl_up(found, 1);
    *before = rank ? last : KwT();
    return found;
}
template <class Group, class KwT, class KwF>
static inline KwT reduce(const Group& group, KwT value, KwF join) {
    KwT before;
    return group.shfl(kw_scan(group, value, join, &before), group.size() - 1);
}
template <class Group, class KwT, class KwF>
static inline KwT inclusive_scan(const Group& group, KwT value, KwF join) {
    KwT before;
    return kw_scan(group, value, join, &before);
}
template <class Group, class KwT, class KwF>
static inline KwT exclusive_scan(const Group& group, KwT value, KwF join) {
    KwT before;
    kw_scan(group, value, join, &before);
    return before;
}
template <class Group, class KwT>
static inline KwT inclusive_scan(const Group& group, KwT value) { return inclusive_scan(group, value, plus<KwT>()); }
template <class Group, class KwT>
static inline KwT exclusive_scan(const Group& group, KwT value) { return exclusive_scan(group, value, plus<KwT>()); }
// One thread of the group calls it, for all.
template <class Group, class KwF>
static inline auto invoke_one_broadcast(const Group& group, KwF call) -> decltype(call()) {
    decltype(call()) found{};
    if (group.thread_rank() == 0) found = call();
    return group.shfl(found, 0);
}
template <class Group, class KwF>
static inline void invoke_one(const Group& group, KwF call) {
    if (group.thread_rank() == 0) call();
}

}  // namespace cooperative_groups
