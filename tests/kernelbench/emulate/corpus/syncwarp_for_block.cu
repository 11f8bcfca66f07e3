// Neighbours' numbers, where __syncwarp does for a warp what a block needs __syncthreads for.
//
//: x, y = randn(64), empty(64)
//: next<<<1, 64>>>(x, y)
//: y == x.roll(-1)

extern "C" __global__ void next(const float* x, float* y) {
    __shared__ float kept[64];
    const int t = threadIdx.x;
    kept[t] = x[t];  //! ONLY_WARP write_after_read
#ifdef ONLY_WARP
    __syncwarp();
#else
    __syncthreads();
#endif
    y[t] = kept[(t + 1) % 64];  //! ONLY_WARP uninitialized, read_after_write
}
