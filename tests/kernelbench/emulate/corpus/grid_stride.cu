// A loop over the grid, for any number of blocks.
//
//: x, y = randn(1000), empty(1000)
//: scale<<<2, 128>>>(x, y, 1000, 3.0)
//: y == 3 * x

extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
#ifdef FROM_BLOCK
    const int stride = blockDim.x;  // every block does all, but for the first ones
#else
    const int stride = gridDim.x * blockDim.x;
#endif
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = x[i] * factor;
}
