// A transpose without shared memory: 3 dimensions, batches along the grid's z.
//
//: x, y = randn(3, 5, 9), empty(3, 9, 5)
//: turn<<<(2, 1, 3), (8, 8)>>>(x, y, 5, 9)
//: y == x.transpose(1, 2)

extern "C" __global__ void turn(const float* x, float* y, int rows, int cols) {
    const unsigned col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned batch = blockIdx.z * rows * cols;
    if (row < rows && col < cols) y[batch + col * rows + row] = __ldg(&x[batch + row * cols + col]);
}
