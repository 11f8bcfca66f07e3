// Rows of a matrix whose rows lie further apart than they are long.
//
//: x, y = randn(10, 24), empty(10, 20)
//: crop<<<10, 20>>>(x, y, 24, 20)
//: y == x[:, :20]

extern "C" __global__ void crop(const float* x, float* y, int stride, int width) {
#ifdef SWAPPED
    y[blockIdx.x * stride + threadIdx.x] = x[blockIdx.x * width + threadIdx.x];  //! SWAPPED out_of_bounds
#elif defined(NO_STRIDE)
    y[blockIdx.x * width + threadIdx.x] = x[blockIdx.x * width + threadIdx.x];  //! NO_STRIDE wrong_output
#else
    y[blockIdx.x * width + threadIdx.x] = x[blockIdx.x * stride + threadIdx.x];
#endif
}
