// Running sums without the number itself, by Blelloch: up the tree and down again.
//
//: x, y = randint(0, 10, (64,), dtype=int32), empty(64, dtype=int32)
//: scan<<<1, 32>>>(x, y)
//: y == x.cumsum(0) - x

extern "C" __global__ void scan(const int* x, int* y) {
    __shared__ int kept[64];
    const int t = threadIdx.x;
    int offset = 1;
    kept[2 * t] = x[2 * t];
    kept[2 * t + 1] = x[2 * t + 1];
    for (int d = 32; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) {
            const int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
            kept[b] += kept[a];  //! DOWN_TOO_SOON read_after_write, write_after_read
        }
        offset *= 2;
    }
    if (t == 0) kept[63] = 0;
    for (int d = 1; d < 64; d *= 2) {
        offset >>= 1;
#ifndef DOWN_TOO_SOON
        __syncthreads();
#endif
        if (t < d) {
            const int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1, left = kept[a];  //! DOWN_TOO_SOON read_after_write
            kept[a] = kept[b];  //! DOWN_TOO_SOON read_after_write, write_after_read
            kept[b] += left;  //! DOWN_TOO_SOON write_after_read
        }
    }
    __syncthreads();
    y[2 * t] = kept[2 * t];
    y[2 * t + 1] = kept[2 * t + 1];
}
