// RMS norm of half rows through a block reduction that is a template of the number of threads.
//
//: x, w, y = randn(3, 96).half(), randn(96).half(), empty(3, 96, dtype=float16)
//: rms_norm<<<3, 64>>>(x, w, y, 96)
//: y == F.rms_norm(x.float(), (96,), w.float(), 1e-6)
#include <cuda_fp16.h>

template <int THREADS>
__device__ float block_sum(float v) {
    static __shared__ float of_warp[THREADS / 32];
    for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(0xffffffff, v, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0.0f;
    for (int w = 0; w < THREADS / 32; ++w) v += of_warp[w];
    return v;
}
extern "C" __global__ void __launch_bounds__(64) rms_norm(const half* x, const half* w, half* y, int n) {
    float v = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) {
        const float f = __half2float(x[blockIdx.x * n + i]);
        v = fmaf(f, f, v);
    }
    const float scale = rsqrtf(block_sum<64>(v) / n + 1e-6f);
    for (int i = threadIdx.x; i < n; i += 64)
        y[blockIdx.x * n + i] = __float2half(__half2float(x[blockIdx.x * n + i]) * scale * __half2float(w[i]));
}
