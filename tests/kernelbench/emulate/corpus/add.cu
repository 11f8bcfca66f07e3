// The sum of two vectors.
//
//: a, b, c = randn(1000), randn(1000), empty(1000)
//: add<<<4, 256>>>(a, b, c, 1000)
//:FEW_BLOCKS: add<<<3, 256>>>(a, b, c, 1000)
//: c == a + b
//:UNWRITTEN: a = empty(1000); add<<<4, 256>>>(a, b, c, 1000)

extern "C" __global__ void add(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef ONE_TOO_MANY
    if (i <= n)
#elif defined(BEFORE)
    i -= 1;
    if (i < n)
#elif !defined(NO_GUARD)
    if (i < n)
#endif
        c[i] = a[i] + b[i];  //! NO_GUARD out_of_bounds; ONE_TOO_MANY out_of_bounds; BEFORE out_of_bounds; UNWRITTEN uninitialized; FEW_BLOCKS wrong_output
}
