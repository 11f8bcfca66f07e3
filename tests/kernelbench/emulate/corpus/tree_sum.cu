// Sums of rows, by a tree in shared memory.
//
//: x, y = randn(3, 200), empty(3)
//: sums<<<3, 128>>>(x, y, 200)
//: y == x.sum(1)

extern "C" __global__ void sums(const float* x, float* y, int n) {
    __shared__ float part[128];
    const int t = threadIdx.x;
    float sum = 0.0f;
    for (int i = t; i < n; i += 128) sum += x[blockIdx.x * n + i];
#ifdef SOME_WRITE
    if (t < 100)
#endif
        part[t] = sum;  //! NO_FIRST_BARRIER write_after_read
#ifndef NO_FIRST_BARRIER
    __syncthreads();
#endif
    for (int half = 64; half > 0; half /= 2) {
#ifdef ALL_ADD
        part[t] += part[t + half];  //! ALL_ADD out_of_bounds
#else
        if (t < half) part[t] += part[t + half];  //! NO_FIRST_BARRIER read_after_write, uninitialized; NO_BARRIER read_after_write, write_after_read; SOME_WRITE uninitialized; UNTIL_WARP read_after_write, write_after_read
#endif
#ifdef UNTIL_WARP
        if (half > 32)  // trusts that a warp runs in step
#endif
#ifndef NO_BARRIER
            __syncthreads();
#endif
    }
    if (t == 0) y[blockIdx.x] = part[0];
}
