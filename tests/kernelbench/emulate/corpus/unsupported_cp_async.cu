// Asynchronous copies.
//
//: x = randn(32)
//: run<<<1, 32>>>(x)

extern "C" __global__ void run(float* x) {
    __shared__ float s[32]; __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 4);  //! unsupported
    x[threadIdx.x] = 0.0f;
}
