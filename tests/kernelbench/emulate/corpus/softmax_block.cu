// Softmax of rows, a block for each, with one array of shared memory for both reductions.
//
//: x, y = -5 - rand(3, 200), empty(3, 200)
//: softmax<<<3, 64>>>(x, y, 200)
//: y == x.softmax(1)

extern "C" __global__ void softmax(const float* x, float* y, int n) {
    __shared__ float part[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n;
    y += blockIdx.x * n;
#ifdef WRONG_NEUTRAL
    float most = -3.0e-38f;  // of a maximum, -FLT_MAX was meant
#else
    float most = -3.0e38f;
#endif
    for (int i = t; i < n; i += 64) most = fmaxf(most, x[i]);
    part[t] = most;
    __syncthreads();
    for (int half = 32; half; half /= 2) {
        if (t < half) part[t] = fmaxf(part[t], part[t + half]);
        __syncthreads();
    }
    most = part[0];  //! NO_BARRIER read_after_write
#ifndef NO_BARRIER
    __syncthreads();
#endif
    float sum = 0.0f;
    for (int i = t; i < n; i += 64) sum += expf(x[i] - most);
    part[t] = sum;  //! NO_BARRIER write_after_read
    __syncthreads();
    for (int half = 32; half; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    for (int i = t; i < n; i += 64) y[i] = expf(x[i] - most) / part[0];
}
