// Indices that are off by one, in shared memory that has a neighbour.
//
//: x, y = randn(64), empty(64)
//: shift<<<1, 64>>>(x, y)
//: y == cat([x[1:], x[63:]])

extern "C" __global__ void shift(const float* x, float* y) {
    __shared__ float kept[64];
    __shared__ float beside[64];
    const int t = threadIdx.x;
#ifdef WRITES
    kept[t + 1] = x[t];  //! WRITES out_of_bounds
#elif defined(WRITES_BEFORE)
    kept[t - 1] = x[t];  //! WRITES_BEFORE out_of_bounds
#else
    kept[t] = x[t];
#endif
    beside[t] = x[t];
    __syncthreads();
#ifdef READS
    y[t] = kept[t + 1];  //! READS out_of_bounds
#else
    y[t] = t < 63 ? kept[t + 1] : beside[t];
#endif
}
