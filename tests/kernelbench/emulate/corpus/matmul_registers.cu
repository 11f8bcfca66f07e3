// A tiled product, four by four numbers a thread, tiles read as float4.
//
//: a, b, c = randn(32, 16), randn(16, 32), empty(32, 32)
//: matmul<<<1, (8, 8)>>>(a, b, c)
//: c == a @ b

template <int M, int N, int K, int R>
__device__ void product(const float* a, const float* b, float* c) {
    __shared__ __align__(16) float as[K][M + 4];
    __shared__ alignas(16) float bs[K][N];
    const int t = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    for (int i = t; i < M * K; i += threads) as[i % K][i / K] = a[i];
    for (int i = t; i < K * N / 4; i += threads)
        reinterpret_cast<float4*>(&bs[0][0])[i] = reinterpret_cast<const float4*>(b)[i];
    __syncthreads();
    float sum[R][R] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const float4 u = *reinterpret_cast<const float4*>(&as[k][threadIdx.y * R]);
        const float4 v = *reinterpret_cast<const float4*>(&bs[k][threadIdx.x * R]);
        const float us[R] = {u.x, u.y, u.z, u.w}, vs[R] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < R; ++i)
#pragma unroll
            for (int j = 0; j < R; ++j) sum[i][j] = fmaf(us[i], vs[j], sum[i][j]);
    }
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < R; ++j) c[(threadIdx.y * R + i) * N + threadIdx.x * R + j] = sum[i][j];
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c) { product<32, 32, 16, 4>(a, b, c); }
