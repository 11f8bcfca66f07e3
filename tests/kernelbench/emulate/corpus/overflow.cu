// An offset that needs more than 32 bits.
//
//: x, y = randn(8), empty(8)
//: far<<<1, 8>>>(x, y, 65536)
//: y == x

extern "C" __global__ void far(const float* x, float* y, int rows) {
    const int i = threadIdx.x;
#ifdef OF_INT
    const int at = rows * rows / 2 + i;  // 2^31, which an int has not
    y[i] = x[at - 2147483648LL];  //! OF_INT out_of_bounds
#else
    const long long at = static_cast<long long>(rows) * rows / 2 + i;
    y[i] = x[at - 2147483648LL];
#endif
}
