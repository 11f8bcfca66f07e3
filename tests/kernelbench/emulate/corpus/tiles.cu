// Cooperative groups: the block, tiles of a warp, reductions and scans of them.
//
//: x, y, z = randint(0, 100, (64,), dtype=int32), empty(4, dtype=int32), empty(64, dtype=int32)
//: sums<<<1, 64>>>(x, y, z)
//: y == x.reshape(4, 16).sum(1)
//: z == x.reshape(4, 16).cumsum(1).reshape(64)
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

extern "C" __global__ void sums(const int* x, int* y, int* z) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    const int v = x[block.thread_rank()];
    const int sum = cg::reduce(tile, v, cg::plus<int>());
    if (tile.thread_rank() == 0) y[tile.meta_group_rank()] = sum;
    z[block.thread_rank()] = cg::inclusive_scan(tile, v, cg::plus<int>());
    block.sync();
}
