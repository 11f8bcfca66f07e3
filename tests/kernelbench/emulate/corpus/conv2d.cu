// A convolution of 3 by 3, weights in constant memory, a tile with its halo loaded by all threads.
//
//: x, y = randn(2, 20, 22), empty(2, 18, 20)
//: conv<<<(2, 2, 2), (16, 16)>>>(x, y, 20, 22)
//: w = tensor([[1.0, 2.0, 1.0], [0.0, 0.5, 0.0], [-1.0, -2.0, -1.0]])
//: y == F.conv2d(x.unsqueeze(1), w.reshape(1, 1, 3, 3)).squeeze(1)

__constant__ float weights[9] = {1.0f, 2.0f, 1.0f, 0.0f, 0.5f, 0.0f, -1.0f, -2.0f, -1.0f};

extern "C" __global__ void conv(const float* x, float* y, int height, int width) {
    __shared__ float tile[18][18];
    const int x0 = blockIdx.x * 16, y0 = blockIdx.y * 16, t = threadIdx.y * 16 + threadIdx.x;
    x += blockIdx.z * height * width;
    for (int i = t; i < 18 * 18; i += 256) {
        const int r = i / 18, c = i % 18;
        tile[r][c] = y0 + r < height && x0 + c < width ? x[(y0 + r) * width + x0 + c] : 0.0f;
    }
    __syncthreads();
    const int row = y0 + threadIdx.y, col = x0 + threadIdx.x;
    if (row >= height - 2 || col >= width - 2) return;
    float sum = 0.0f;
    for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c)
#ifdef TABLE_BEYOND
            sum += tile[threadIdx.y + r][threadIdx.x + c] * weights[r * 4 + c];  //! TABLE_BEYOND out_of_bounds
#else
            sum += tile[threadIdx.y + r][threadIdx.x + c] * weights[r * 3 + c];
#endif
    y[(blockIdx.z * (height - 2) + row) * (width - 2) + col] = sum;
}
