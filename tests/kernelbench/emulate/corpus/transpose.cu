// A transpose through a padded tile; without padding it is right, too, but slower.
//
//: x, y = randn(40, 70), empty(70, 40)
//: turn<<<(3, 2), (32, 8)>>>(x, y, 40, 70)
//: y == x.T

#ifdef SHORT_ROWS
#define WIDTH 31
#else
#define WIDTH 33
#endif
extern "C" __global__ void turn(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][WIDTH];
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row + i < rows && col < cols) tile[threadIdx.y + i][threadIdx.x] = x[(row + i) * cols + col];  //! SHORT_ROWS out_of_bounds, write_after_write
    __syncthreads();
    col = blockIdx.y * 32 + threadIdx.x;
    row = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
#ifdef NOT_SWAPPED
        if (row + i < cols && col < rows) y[(row + i) * rows + col] = tile[threadIdx.y + i][threadIdx.x];  //! NOT_SWAPPED uninitialized
#else
        if (row + i < cols && col < rows) y[(row + i) * rows + col] = tile[threadIdx.x][threadIdx.y + i];
#endif
}
