// A histogram: counts of the block by atomics in shared memory, then of all blocks.
//
//: x, counts = randint(0, 10, (500,), dtype=int32), zeros(10, dtype=int32)
//: histogram<<<2, 128>>>(x, counts, 500)
//: counts == bincount(x, minlength=10)

extern "C" __global__ void histogram(const int* x, int* counts, int n) {
    __shared__ int mine[10];
    if (threadIdx.x < 10) mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
#ifdef NO_ATOMICS
        mine[x[i]] += 1;  //! NO_ATOMICS read_after_write, write_after_read
#elif defined(BEYOND)
        atomicAdd(&mine[x[i] + 1], 1);  //! BEYOND out_of_bounds
#else
        atomicAdd(&mine[x[i]], 1);
#endif
    __syncthreads();
    if (threadIdx.x < 10) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}
