// Variables of the module: a counter that is kept between launches, and a table that kernels write.
//
//: y = empty(8, dtype=int32)
//: fill<<<1, 8>>>(5)
//: fill<<<1, 8>>>(7)
//: fetch<<<1, 8>>>(y)
//: y == 7 * arange(8) + 2

__device__ int launches = 0;
__device__ int table[8];

extern "C" __global__ void fill(int factor) {
    table[threadIdx.x] = factor * threadIdx.x;
    if (threadIdx.x == 0) launches += 1;
}
extern "C" __global__ void fetch(int* y) {
#ifdef BEYOND
    y[threadIdx.x] = table[threadIdx.x + 1] + launches;  //! BEYOND out_of_bounds
#else
    y[threadIdx.x] = table[threadIdx.x] + launches;
#endif
}
