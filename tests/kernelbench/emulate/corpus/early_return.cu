// A barrier that threads without work must come to, too.
//
//: x, y = randn(50), empty(50)
//: turn<<<1, 64>>>(x, y, 50)
//: y == x.flip(0)

extern "C" __global__ void turn(const float* x, float* y, int n) {
    __shared__ float kept[64];
    const int i = threadIdx.x;
#ifdef RETURNS
    if (i >= n) return;
    kept[i] = x[i];
    __syncthreads();  //! RETURNS divergent_barrier
#elif defined(INSIDE)
    if (i < n) {
        kept[i] = x[i];
        __syncthreads();  //! INSIDE divergent_barrier
    }
#elif defined(TWO_BRANCHES)
    if (i < n) {
        kept[i] = x[i];
        __syncthreads();
    } else {
        __syncthreads();  //! TWO_BRANCHES divergent_barrier
    }
#elif defined(UNEVEN)
    for (int k = 0; k <= i / 32; ++k) {
        if (i < n) kept[i] = x[i];  //! UNEVEN write_after_read
        __syncthreads();  //! UNEVEN divergent_barrier
    }
#else
    if (i < n) kept[i] = x[i];
    __syncthreads();
#endif
    if (i < n) y[i] = kept[n - 1 - i];  //! UNEVEN read_after_write
}
