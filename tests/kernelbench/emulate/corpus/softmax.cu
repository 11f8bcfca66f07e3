// Softmax of rows, a warp for each, numbers kept in registers.
//
//: x, y = randn(5, 70), empty(5, 70)
//: softmax<<<3, (32, 2)>>>(x, y, 5, 70)
//: y == x.softmax(1)
#include <math_constants.h>

extern "C" __global__ void softmax(const float* x, float* y, int rows, int n) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
#ifndef NO_GUARD
    if (row >= rows) return;
#endif
    float kept[3];
#ifdef FROM_ZERO
    float most = 0.0f, sum = 0.0f;
#else
    float most = -CUDART_INF_F, sum = 0.0f;
#endif
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const int i = threadIdx.x + 32 * k;
        kept[k] = i < n ? x[row * n + i] : -CUDART_INF_F;  //! NO_GUARD out_of_bounds
        most = fmaxf(most, kept[k]);
    }
    for (int offset = 16; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, offset));
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        kept[k] = __expf(kept[k] - most);
        sum += kept[k];
    }
    for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
#pragma unroll
    for (int k = 0; k < 3; ++k)
        if (threadIdx.x + 32 * k < n) y[row * n + threadIdx.x + 32 * k] = kept[k] / sum;
}
