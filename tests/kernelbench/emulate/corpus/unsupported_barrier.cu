// libcu++ barriers.
//
//: x = randn(32)
//: run<<<1, 32>>>(x)

extern "C" __global__ void run(float* x) {
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;  //! unsupported
    x[threadIdx.x] = 0.0f;
}
