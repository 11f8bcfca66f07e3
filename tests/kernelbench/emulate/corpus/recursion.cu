// A recursion of moderate depth; one without end is more than can be emulated.
//
//: y = empty(10, dtype=int32)
//: fibonacci<<<1, 10>>>(y)
//: y == tensor([0, 1, 1, 2, 3, 5, 8, 13, 21, 34])

__device__ int fib(int n, int* seen) {  //! NO_END unsupported
    int here[8];
    here[n & 7] = *seen;
#ifndef NO_END
    if (n < 2) return n;
#endif
    return fib(n - 1, here) + fib(n - 2, here) + 0 * here[0];
}
extern "C" __global__ void fibonacci(int* y) {
    int seen = 0;
    y[threadIdx.x] = fib(threadIdx.x, &seen);
}
