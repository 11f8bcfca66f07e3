// Everything of cooperative groups without its namespace: maxima of a warp, votes, the block's barrier.
//
//: x, y = randn(100), zeros(2)
//: most<<<1, 128>>>(x, y, 100)
//: y == stack([x.max(), (x > 0).sum().float()])
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <math_constants.h>
using namespace cooperative_groups;

extern "C" __global__ void most(const float* x, float* y, int n) {
    __shared__ float of_warp[4];
    auto block = this_thread_block();
    auto warp = tiled_partition<32>(block);
    const int i = static_cast<int>(block.thread_rank());
    const float v = i < n ? x[i] : -CUDART_INF_F;
    const float high = reduce(warp, v, greater<float>());
    if (warp.thread_rank() == 0) of_warp[warp.meta_group_rank()] = high;
    const unsigned positive = warp.ballot(v > 0.0f);
    if (warp.thread_rank() == 0) atomicAdd(&y[1], static_cast<float>(__popc(positive)));
    sync(block);
    if (i == 0) y[0] = fmaxf(fmaxf(of_warp[0], of_warp[1]), fmaxf(of_warp[2], of_warp[3]));
}
