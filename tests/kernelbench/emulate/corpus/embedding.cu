// Rows of a table, by whole numbers of 64 bits that may be negative, which pads.
//
//: table, index, y = randn(10, 32), tensor([3, -1, 9, 0]), empty(4, 32)
//:BAD_INDEX: table, index, y = randn(10, 32), tensor([3, -1, 10, 0]), empty(4, 32)
//: gather<<<4, 32>>>(table, index, y, 32)
//: y == stack([table[3], table[3] * 0, table[9], table[0]])

extern "C" __global__ void gather(const float* table, const long long* index, float* y, int width) {
    const long long row = index[blockIdx.x];
#ifdef NO_PADDING
    const float v = table[row * width + threadIdx.x];  //! NO_PADDING out_of_bounds
#else
    const float v = row < 0 ? 0.0f : table[row * width + threadIdx.x];  //! BAD_INDEX out_of_bounds
#endif
    y[blockIdx.x * width + threadIdx.x] = v;
}
