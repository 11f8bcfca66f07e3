// A tiled product with two buffers: one barrier a step, for the next tile goes to the other buffer.
//
//: a, b, c = randn(16, 40), randn(40, 16), empty(16, 16)
//: matmul<<<(2, 2), (8, 8)>>>(a, b, c, 16, 40)
//: c == a @ b

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n, int k) {
    __shared__ float as[2][8][8];
    __shared__ float bs[2][8][8];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, col = blockIdx.x * 8 + x;
    float sum = 0.0f;
    as[0][y][x] = a[row * k + x];
    bs[0][y][x] = b[y * n + col];
    __syncthreads();
    for (int t = 0; t < k / 8; ++t) {
#ifdef ONE_BUFFER
        const int now = 0, next = 0;
#else
        const int now = t % 2, next = 1 - now;
#endif
        if (t + 1 < k / 8) {
            as[next][y][x] = a[row * k + (t + 1) * 8 + x];  //! ONE_BUFFER write_after_read
            bs[next][y][x] = b[((t + 1) * 8 + y) * n + col];  //! ONE_BUFFER write_after_read
        }
        for (int i = 0; i < 8; ++i) sum += as[now][y][i] * bs[now][i][x];  //! ONE_BUFFER read_after_write
        __syncthreads();
    }
    c[row * n + col] = sum;
}
