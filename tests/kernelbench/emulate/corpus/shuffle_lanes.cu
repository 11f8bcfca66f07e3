// Shuffles of lanes that take part, and of others.
//
//: x, y = arange(32, dtype=float32), empty(32)
//: lanes<<<1, 32>>>(x, y)
//:SHORT_WARP: lanes<<<1, 20>>>(x, y)
//: y == cat([x[1:16], x[15:]])

extern "C" __global__ void lanes(const float* x, float* y) {
    const int t = threadIdx.x;
    float v = x[t];
#ifdef OUT_OF_MASK
    v = __shfl_down_sync(0x0000ffffu, v, 1, 16);  //! OUT_OF_MASK not_in_mask
#elif defined(INACTIVE)
    if (t < 16) v = __shfl_down_sync(0x0000ffffu, v, 1);  //! INACTIVE failed
#elif defined(FULL_MASK)
    if (t < 16) v = __shfl_down_sync(0xffffffffu, v, 1, 16);  //! FULL_MASK stuck
    else __syncwarp();  //! FULL_MASK stuck
#elif defined(SHORT_WARP)
    v = __shfl_down_sync(0xffffffffu, v, 1);  //! SHORT_WARP failed
#else
    if (t < 16) v = __shfl_down_sync(0x0000ffffu, v, 1, 16);
#endif
    y[t] = v;
}
