// assert, printf and __trap in kernels.
//
//: x, y = rand(32), empty(32)
//: root<<<1, 32>>>(x, y, 32)
//: y == x.sqrt()
#ifndef __CUDACC_RTC__  // which has both without
#include <cassert>
#include <cstdio>
#endif

extern "C" __global__ void root(const float* x, float* y, int n) {
    if (threadIdx.x >= n) printf("thread %d of %d\n", threadIdx.x, n);
#ifdef FAILS
    assert(x[threadIdx.x] < 0.0f);  //! FAILS failed
#elif defined(TRAPS)
    if (x[threadIdx.x] < 2.0f) __trap();  //! TRAPS failed
#else
    assert(x[threadIdx.x] >= 0.0f && "roots are of what is not negative");
#endif
    y[threadIdx.x] = sqrtf(x[threadIdx.x]);
}
