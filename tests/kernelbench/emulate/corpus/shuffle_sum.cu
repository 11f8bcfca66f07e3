// Sums of rows, by shuffles in warps and shared memory between them.
//
//: x, y = randn(3, 300), empty(3)
//: sums<<<3, 96>>>(x, y, 300)
//: y == x.sum(1)

template <typename T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}
extern "C" __global__ void sums(const float* x, float* y, int n) {
    __shared__ float of_warp[3];
    float v = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;  //! SYNCWARP write_after_read
#ifdef SYNCWARP
    __syncwarp();
#else
    __syncthreads();
#endif
    if (threadIdx.x == 0) y[blockIdx.x] = of_warp[0] + of_warp[1] + of_warp[2];  //! SYNCWARP read_after_write, uninitialized
}
