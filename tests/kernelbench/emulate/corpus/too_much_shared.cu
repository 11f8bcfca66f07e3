// More static shared memory than the 48 KiB that a kernel can have of it.
//
//: x, y = randn(32), empty(32)
//: keep<<<1, 32>>>(x, y)
//: y == x

#ifdef TOO_MUCH
#define SIZE 12289
#else
#define SIZE 12288
#endif
extern "C" __global__ void keep(const float* x, float* y) {
    __shared__ float kept[SIZE];  //! TOO_MUCH refused
    kept[SIZE - 1 - threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = kept[SIZE - 1 - threadIdx.x];
}
