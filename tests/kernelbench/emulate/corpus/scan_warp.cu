// Running sums: shuffles in warps, then the sums of warps.
//
//: x, y = randn(96), empty(96)
//: scan<<<1, 96>>>(x, y)
//: y == x.cumsum(0)

extern "C" __global__ void scan(const float* x, float* y) {
    __shared__ float of_warp[3];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    float v = x[t];
    for (int by = 1; by < 32; by *= 2) {
        const float other = __shfl_up_sync(0xffffffff, v, by);
        if (lane >= by) v += other;
    }
    if (lane == 31) of_warp[warp] = v;
    __syncthreads();
    for (int w = 0; w < warp; ++w) v += of_warp[w];
    y[t] = v;
}
