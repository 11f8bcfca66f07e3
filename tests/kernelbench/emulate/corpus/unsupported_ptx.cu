// Inline PTX.
//
//: x = randn(32)
//: run<<<1, 32>>>(x)

extern "C" __global__ void run(float* x) {
    unsigned lane; asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));  //! unsupported
    x[threadIdx.x] = 0.0f;
}
