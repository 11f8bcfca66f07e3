// A tiled product, both tiles in dynamic shared memory.
//
//: a, b, c = randn(16, 24), randn(24, 16), empty(16, 16)
//: matmul<<<(2, 2), (8, 8), 512>>>(a, b, c, 16, 24)
//:ONE_TILE: matmul<<<(2, 2), (8, 8), 256>>>(a, b, c, 16, 24)
//:TOO_MUCH: matmul<<<(2, 2), (8, 8), 300000>>>(a, b, c, 16, 24)
//: c == a @ b

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n, int k) {
    extern __shared__ float tiles[];  //! TOO_MUCH refused
    float* as = tiles;
    float* bs = tiles + 64;
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, col = blockIdx.x * 8 + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += 8) {
        as[y * 8 + x] = a[row * k + t + x];
        bs[y * 8 + x] = b[(t + y) * n + col];  //! ONE_TILE out_of_bounds
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(as[y * 8 + i], bs[i * 8 + x], sum);
        __syncthreads();
    }
    c[row * n + col] = sum;
}
