// Tensor cores from CUDA C++: y = x w^T for x (M, K) and w (N, K) in bf16, y (M, N) in float. wmma multiplies
// fragments of 16 by 16 by 16, which a warp holds together, and accumulates in float. M and N are multiples of
// 32, K of 16; other edges go through shared memory, padded. NVRTC builds it; it is not run in emulation.
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

// Launch: grid (N / 64, M / 64), rounded up, block 128. Each of 4 warps computes 32 by 32, as 2 by 2 fragments: 4 products
// for 4 fragments loaded. A fast kernel also stages tiles in shared memory with cp.async, two or more ahead.
extern "C" __global__ void __launch_bounds__(128)
product(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ w, float* __restrict__ y,
        int M, int N, int K) {
    const int warp = threadIdx.x / 32, m = blockIdx.y * 64 + warp / 2 * 32, n = blockIdx.x * 64 + warp % 2 * 32;
    if (m + 32 > M || n + 32 > N) return;  // a whole warp at a time: wmma needs all 32 threads
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> total[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::fill_fragment(total[i][j], 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a[2];
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b[2];  // w^T, without a copy
        for (int i = 0; i < 2; ++i) {
            wmma::load_matrix_sync(a[i], x + (long)(m + 16 * i) * K + k, K);
            wmma::load_matrix_sync(b[i], w + (long)(n + 16 * i) * K + k, K);
        }
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j) wmma::mma_sync(total[i][j], a[i], b[j], total[i][j]);
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(y + (long)(m + 16 * i) * N + n + 16 * j, total[i][j], N, wmma::mem_row_major);
}
