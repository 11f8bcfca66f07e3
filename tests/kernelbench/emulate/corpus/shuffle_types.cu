// Shuffles of 64 bits, of halfs and of pairs of them: up, by index, in groups.
//
//: x, y = randn(32, dtype=float64), empty(4, 32, dtype=float64)
//: turn<<<1, 32>>>(x, y)
//: h = x.half().double()
//: y == stack([x.flip(0), cat([x[:2], x[:-2]]), h.reshape(4, 8)[:, 3:4].expand(4, 8).reshape(32), h.reshape(16, 2).flip(1).reshape(32)])
#include <cuda_fp16.h>

extern "C" __global__ void turn(const double* x, double* y) {
    const int t = threadIdx.x;
    y[t] = __shfl_sync(0xffffffffu, x[t], 31 - t);
    const long long bits = __shfl_up_sync(0xffffffffu, __double_as_longlong(x[t]), 2);
    y[32 + t] = __longlong_as_double(bits);
    y[64 + t] = __half2float(__shfl_sync(0xffffffffu, __double2half(x[t]), 3, 8));
    const __half2 pair = __half2half2(__double2half(x[t]));
    y[96 + t] = __high2float(__shfl_xor_sync(0xffffffffu, pair, 1));
}
