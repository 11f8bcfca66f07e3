// The three greatest of a row: each round takes one, and marks it in shared memory.
//
//: x, values, indices = randperm(200).float().reshape(4, 50), empty(4, 3), empty(4, 3, dtype=int32)
//: top3<<<4, 32>>>(x, values, indices, 50)
//: values == x.topk(3).values
//: indices == x.topk(3).indices
#include <math_constants.h>

extern "C" __global__ void top3(const float* x, float* values, int* indices, int n) {
    __shared__ unsigned char taken[50];
    for (int i = threadIdx.x; i < n; i += 32) taken[i] = 0;
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        float most = -CUDART_INF_F;
        int at = -1;
        for (int i = threadIdx.x; i < n; i += 32)
            if (!taken[i] && x[blockIdx.x * n + i] > most) most = x[blockIdx.x * n + i], at = i;  //! NO_BARRIER read_after_write
        for (int offset = 16; offset; offset /= 2) {
            const float other = __shfl_xor_sync(0xffffffff, most, offset);
            const int other_at = __shfl_xor_sync(0xffffffff, at, offset);
            if (other > most) most = other, at = other_at;
        }
        __syncwarp();
        if (threadIdx.x == 0) {
            values[blockIdx.x * 3 + round] = most;
            indices[blockIdx.x * 3 + round] = at;
            taken[at] = 1;  //! NO_BARRIER write_after_read
        }
#ifndef NO_BARRIER
        __syncthreads();
#endif
    }
}
