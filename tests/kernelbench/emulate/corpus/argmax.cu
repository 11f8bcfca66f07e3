// Where the greatest number of each row is; of equal ones the first.
//
//: x, y = randint(0, 20, (4, 100)).float(), empty(4, dtype=int64)
//: argmax<<<4, 64>>>(x, y, 100)
//: y == x.argmax(1)
#include <math_constants.h>

struct Best { float value; int index; };
__device__ __forceinline__ Best better(Best a, Best b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index) ? a : b;
}
extern "C" __global__ void argmax(const float* x, long long* y, int n) {
    __shared__ Best best[2];
    Best mine{-CUDART_INF_F, 0};
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine = better(mine, Best{x[blockIdx.x * n + i], i});
    for (int offset = 16; offset; offset /= 2) {
        const Best other{__shfl_down_sync(0xffffffff, mine.value, offset), __shfl_down_sync(0xffffffff, mine.index, offset)};
        mine = better(mine, other);
    }
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = better(best[0], best[1]).index;
}
