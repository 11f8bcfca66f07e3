// A tiled product with edges, tiles in static shared memory.
//
//: a, b, c = randn(20, 35), randn(35, 18), empty(20, 18)
//: matmul<<<(2, 2), (16, 16)>>>(a, b, c, 20, 18, 35)
//: c == a @ b

#define TILE 16
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
#ifdef EARLY_RETURN
    if (row >= m || col >= n) return;
#endif
    float sum = 0.0f;
    for (int t = 0; t < (k + TILE - 1) / TILE; ++t) {
        const int ka = t * TILE + threadIdx.x, kb = t * TILE + threadIdx.y;
#ifdef NO_GUARD
        as[threadIdx.y][threadIdx.x] = a[row * k + ka];  //! NO_GUARD out_of_bounds
        bs[threadIdx.y][threadIdx.x] = b[kb * n + col];  //! NO_GUARD out_of_bounds
#else
        as[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;  //! NO_SECOND_BARRIER write_after_read
        bs[threadIdx.y][threadIdx.x] = kb < k && col < n ? b[kb * n + col] : 0.0f;  //! NO_SECOND_BARRIER write_after_read
#endif
        __syncthreads();  //! EARLY_RETURN divergent_barrier
        for (int i = 0; i < TILE; ++i)
            sum += as[threadIdx.y][i] * bs[i][threadIdx.x];  //! EARLY_RETURN uninitialized; NO_SECOND_BARRIER read_after_write
#ifndef NO_SECOND_BARRIER
        __syncthreads();
#endif
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
