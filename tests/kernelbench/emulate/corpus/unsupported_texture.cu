// A texture.
//
//: x = randn(32)
//: run<<<1, 32>>>(x)

extern "C" __global__ void run(float* x) {
    cudaTextureObject_t texture = 0; x[0] = tex2D<float>(texture, 0.5f, 0.5f);  //! unsupported
    x[threadIdx.x] = 0.0f;
}
