// Pooling of 3 by 3 at every second place, with padding.
//
//: x, y = randn(2, 9, 11), empty(2, 5, 6)
//: pool<<<1, 64>>>(x, y, 9, 11, 5, 6, 60)
//: y == F.max_pool2d(x, 3, 2, 1)
#include <math_constants.h>

extern "C" __global__ void pool(const float* x, float* y, int h, int w, int oh, int ow, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    const int plane = i / (oh * ow), r0 = i / ow % oh * 2 - 1, c0 = i % ow * 2 - 1;
    float most = -CUDART_INF_F;
    for (int r = r0; r < r0 + 3; ++r)
        for (int c = c0; c < c0 + 3; ++c) {
#ifdef NO_PADDING
            most = fmaxf(most, x[(plane * h + r) * w + c]);  //! NO_PADDING out_of_bounds
#else
            if (r >= 0 && r < h && c >= 0 && c < w) most = fmaxf(most, x[(plane * h + r) * w + c]);
#endif
        }
    y[i] = most;
}
