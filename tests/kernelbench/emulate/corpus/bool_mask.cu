// Chooses by a mask of bools, counts in 64 bits, and sums in double precision.
//
//: mask, a, b, y, count = randn(100) > 0, randn(100, dtype=float64), randn(100, dtype=float64), empty(100, dtype=float64), zeros(1, dtype=int64)
//: choose<<<1, 128>>>(mask, a, b, y, count, 100)
//: y == where(mask, a, b)
//: count == mask.sum().reshape(1)

extern "C" __global__ void choose(const bool* mask, const double* a, const double* b, double* y, long long* count, int n) {
    const int i = threadIdx.x;
    const bool here = i < n && mask[i];
    if (i < n) y[i] = here ? a[i] : b[i];
    const int all = __syncthreads_count(here);
    if (i == 0) *count += all;
}
