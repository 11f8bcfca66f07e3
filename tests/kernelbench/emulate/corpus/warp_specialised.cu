// One warp loads what the other works on; both meet at the same barriers.
//
//: x, y = randn(128), empty(128)
//: stages<<<1, 64>>>(x, y, 4)
//: y == x * x + 1

extern "C" __global__ void stages(const float* x, float* y, int count) {
    __shared__ float buffer[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) buffer[0][lane] = x[lane];
    __syncthreads();
    for (int s = 0; s < count; ++s) {
        if (warp == 0) {
#ifdef SAME_BUFFER
            if (s + 1 < count) buffer[s % 2][lane] = x[(s + 1) * 32 + lane];  //! SAME_BUFFER write_after_read
#else
            if (s + 1 < count) buffer[(s + 1) % 2][lane] = x[(s + 1) * 32 + lane];
#endif
        } else {
            const float v = buffer[s % 2][lane];  //! SAME_BUFFER read_after_write, uninitialized
            y[s * 32 + lane] = v * v + 1.0f;
        }
        __syncthreads();
    }
}
