// Tensor cores by wmma.
//
//: x = randn(32)
//: run<<<1, 32>>>(x)

extern "C" __global__ void run(float* x) {
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum;  //! unsupported
    x[threadIdx.x] = 0.0f;
}
