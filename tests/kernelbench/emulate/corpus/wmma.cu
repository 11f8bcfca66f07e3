// y = x w^T on tensor cores by wmma: bf16, and fp32 as TF32 and as three products of TF32.
//
//: x, w, y = randn(16, 32).bfloat16(), randn(16, 32).bfloat16(), empty(16, 16)
//: in_bf16<<<1, 32>>>(x, w, y)
//: y == x.float() @ w.float().T
//: u, v, z = randn(16, 32), randn(16, 32), empty(16, 16)
//: in_tf32<<<1, 32>>>(u, v, z)
//: z == u @ v.T
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void in_bf16(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < 32; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b;
        wmma::load_matrix_sync(a, x + k, 32);
        wmma::load_matrix_sync(b, w + k, 32);
        wmma::mma_sync(sum, a, b, sum);
    }
#ifdef BEYOND
    y += 16;
#endif
#ifdef HALF
    if (threadIdx.x < 16)
#endif
    wmma::store_matrix_sync(y, sum, 16, wmma::mem_row_major);  //! BEYOND out_of_bounds; HALF failed
}

template <class F>
__device__ void split(F& large, F& small) {
    for (int i = 0; i < large.num_elements; ++i) {
        const float value = large.x[i];
        large.x[i] = wmma::__float_to_tf32(value);
        small.x[i] = wmma::__float_to_tf32(value - large.x[i]);
    }
}

extern "C" __global__ void in_tf32(const float* x, const float* w, float* y) {
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < 32; k += 8) {
        wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a, a_rest;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b, b_rest;
        wmma::load_matrix_sync(a, x + k, 32);
        wmma::load_matrix_sync(b, w + k, 32);
        split(a, a_rest);
        split(b, b_rest);
#ifndef ONE  //! ONE wrong_output
        wmma::mma_sync(sum, a_rest, b, sum);
        wmma::mma_sync(sum, a, b_rest, sum);
#endif
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::store_matrix_sync(y, sum, 16, wmma::mem_row_major);
}
