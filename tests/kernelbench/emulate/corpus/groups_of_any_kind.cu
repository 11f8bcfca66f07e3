// Cooperative groups whose size is known late: parts by label, tiles by number, scans of them.
//
//: label, x, sum, rank = randint(0, 3, (32,), dtype=int32), randn(32), empty(32), empty(3, 32, dtype=int32)
//: parts<<<1, 32>>>(label, x, sum, rank)
//: same = (label[:, None] == label[None]).float()
//: sum == same @ x
//: rank[0] = rank[0]
//: before = (tril(same, -1)).sum(1)
//: r0, r1, r2 = rank
//: r0 == before
//: r1 == arange(32) % 8
//: r2 == (arange(32) // 4) * 4
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

__device__ unsigned rank_in(cg::thread_group group) {
    group.sync();
    return group.thread_rank();
}
extern "C" __global__ void parts(const int* label, const float* x, float* sum, int* rank) {
    const int t = threadIdx.x;
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto same = cg::labeled_partition(warp, label[t]);
    sum[t] = cg::reduce(same, x[t], cg::plus<float>());
    rank[t] = cg::exclusive_scan(same, 1);
    rank[32 + t] = rank_in(cg::tiled_partition(cg::this_thread_block(), 8));
    auto four = cg::tiled_partition<4>(warp);
    rank[64 + t] = cg::invoke_one_broadcast(four, [&] { return t; });
}
