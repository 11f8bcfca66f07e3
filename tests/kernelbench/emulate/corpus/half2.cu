// Pairs of halfs, with a fused multiply-add.
//
//: x, y = randn(514).half(), randn(514).half()
//: saxpy<<<2, 256>>>(x, y, 514, 1.5)
//:ODD: y = y[:513]; x = x[:513]; saxpy<<<2, 256>>>(x, y, 514, 1.5)
//: torch.manual_seed(0); a, b = randn(514).half(), randn(514).half()
//: y == 1.5 * a[:len(y)].float() + b[:len(y)].float()
#include <cuda_fp16.h>

extern "C" __global__ void saxpy(const half* x, half* y, int n, float a) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i >= n) return;
    const __half2* x2 = reinterpret_cast<const __half2*>(x);
    __half2* y2 = reinterpret_cast<__half2*>(y);
    y2[i] = __hfma2(__float2half2_rn(a), x2[i], y2[i]);  //! ODD out_of_bounds
}
