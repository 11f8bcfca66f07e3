// The last steps of a sum within one warp, which does not run in step.
//
//: x, y = randn(64), empty(1)
//: total<<<1, 32>>>(x, y)
//: y == x.sum().reshape(1)

extern "C" __global__ void total(const float* x, float* y) {
    __shared__ volatile float part[64];
    const int t = threadIdx.x;
    part[t] = x[t];  //! IN_STEP write_after_read
    part[t + 32] = x[t + 32];
#ifdef IN_STEP
#define STEP(n) if (t < n) part[t] += part[t + n];
#else
    __syncwarp();
#define STEP(n) { const float other = part[t + n]; __syncwarp(); part[t] = part[t] + other; __syncwarp(); }
#endif
    STEP(32)
    STEP(16)  //! IN_STEP uninitialized
    STEP(8)  //! IN_STEP uninitialized
    STEP(4)  //! IN_STEP uninitialized
    STEP(2)  //! IN_STEP uninitialized
    STEP(1)  //! IN_STEP uninitialized
    if (t == 0) y[0] = part[0];
}
