// Running sums by Hillis and Steele, in two buffers.
//
//: x, y = randn(100), empty(100)
//: scan<<<1, 128>>>(x, y, 100)
//: y == x.cumsum(0)

extern "C" __global__ void scan(const float* x, float* y, int n) {
    __shared__ float kept[2][128];
    const int t = threadIdx.x;
    int from = 0;
    kept[0][t] = t < n ? x[t] : 0.0f;
    __syncthreads();
    for (int by = 1; by < 128; by *= 2) {
#ifdef ONE_BUFFER
        if (t >= by) kept[from][t] += kept[from][t - by];  //! ONE_BUFFER read_after_write, write_after_read
#else
        kept[1 - from][t] = kept[from][t] + (t >= by ? kept[from][t - by] : 0.0f);
        from = 1 - from;
#endif
        __syncthreads();
    }
    if (t < n) y[t] = kept[from][t];
}
