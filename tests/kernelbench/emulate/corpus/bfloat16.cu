// bfloat16 in vectors of eight, by way of float.
//
//: x, y = randn(4, 64).bfloat16(), empty(4, 64, dtype=bfloat16)
//: gelu<<<1, 32>>>(x, y, 256)
//: y == F.gelu(x.float(), approximate="tanh")
#include <cuda_bf16.h>

struct alignas(16) Eight { __nv_bfloat162 v[4]; };

__device__ __forceinline__ float gelu_of(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
extern "C" __global__ void gelu(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
    const int i = threadIdx.x;
    if (i * 8 >= n) return;
    Eight eight = reinterpret_cast<const Eight*>(x)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float2 f = __bfloat1622float2(eight.v[k]);
        eight.v[k] = __floats2bfloat162_rn(gelu_of(f.x), gelu_of(f.y));
    }
    reinterpret_cast<Eight*>(y)[i] = eight;
}
