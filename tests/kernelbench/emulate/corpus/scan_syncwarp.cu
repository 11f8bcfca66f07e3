// Running sums of a warp in shared memory: each step reads, waits for its warp, writes, and waits again.
//
//: x, y = randn(64), empty(64)
//: scan<<<1, 64>>>(x, y)
//: y == x.reshape(2, 32).cumsum(1).reshape(64)

extern "C" __global__ void scan(const float* x, float* y) {
    __shared__ float kept[64];
    const int t = threadIdx.x, lane = t % 32;
    kept[t] = x[t];
    __syncwarp();
    for (int by = 1; by < 32; by *= 2) {
        const float before = lane >= by ? kept[t - by] : 0.0f;  //! NO_SECOND read_after_write; NO_FIRST read_after_write
#ifndef NO_FIRST
        __syncwarp();
#endif
        kept[t] += before;  //! NO_FIRST write_after_read; NO_SECOND write_after_read
#ifndef NO_SECOND
        __syncwarp();
#endif
    }
    y[t] = kept[t];
}
