// A sum over all blocks, by atomic additions of what each warp has.
//
//: x, y = randn(1000), zeros(1)
//:UNWRITTEN: x, y = randn(1000), empty(1)
//: total<<<4, 256>>>(x, y, 1000)
//: y == x.sum().reshape(1)

extern "C" __global__ void total(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    for (int offset = 16; offset; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(y, v);  //! UNWRITTEN uninitialized
}
