// The greatest number of a row, of which the one to begin with must not be zero.
//
//: x, y = -1 - rand(4, 50), empty(4)
//: most<<<4, 32>>>(x, y, 50)
//: y == x.max(1).values
#include <math_constants.h>

extern "C" __global__ void most(const float* x, float* y, int n) {
#ifdef ZERO
    float v = 0.0f;  //! ZERO wrong_output
#else
    float v = -CUDART_INF_F;
#endif
    for (int i = threadIdx.x; i < n; i += 32) v = fmaxf(v, x[blockIdx.x * n + i]);
    for (int offset = 16; offset; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}
