// A stencil of three in one dimension, with a halo in shared memory.
//
//: x, y = randn(256), empty(256)
//: stencil<<<4, 64>>>(x, y, 256)
//: y == F.conv1d(x.reshape(1, 1, -1), tensor([[[0.25, 0.5, 0.25]]]), padding=1).reshape(-1)

extern "C" __global__ void stencil(const float* x, float* y, int n) {
    __shared__ float tile[66];
    const int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x + 1;
    tile[t] = x[i];
#ifdef NO_HALO
    if (threadIdx.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
#elif defined(HALO_BEYOND)
    if (threadIdx.x == 0) tile[0] = x[i - 1];  //! HALO_BEYOND out_of_bounds
    if (threadIdx.x == 63) tile[65] = x[i + 1];  //! HALO_BEYOND out_of_bounds
#else
    if (threadIdx.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (threadIdx.x == 63) tile[65] = i + 1 < n ? x[i + 1] : 0.0f;
#endif
    __syncthreads();
    y[i] = 0.25f * tile[t - 1] + 0.5f * tile[t] + 0.25f * tile[t + 1];  //! NO_HALO uninitialized
}
