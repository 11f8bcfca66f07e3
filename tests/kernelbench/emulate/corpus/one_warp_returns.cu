// Threads that return where no barrier follows: as it should be.
//
//: x, y = randn(70), empty(70)
//: negate<<<2, 64>>>(x, y, 70)
//: y == -x

extern "C" __global__ void negate(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = -x[i];
}
