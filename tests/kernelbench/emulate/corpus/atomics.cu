// Atomics of all kinds and widths, and a maximum of floats by comparing and swapping.
//
//: x = randn(128)
//: f, d, i, u = full((1,), -10.0), zeros(1, dtype=float64), zeros(4, dtype=int32), zeros(2, dtype=uint64)
//: all_kinds<<<2, 64>>>(x, f, d, i, u)
//: f == x.max().reshape(1)
//: d == x.double().sum().reshape(1)
//: i == tensor([127, -127, 128 % 10, 0])
//: u == tensor([128 * 127 // 2, (1 << 40) | 127])

__device__ float atomic_max(float* address, float value) {
    int* bits = reinterpret_cast<int*>(address);
    int old = *bits, seen;
    do {
        seen = old;
        if (__int_as_float(seen) >= value) break;
        old = atomicCAS(bits, seen, __float_as_int(value));
    } while (old != seen);
    return __int_as_float(old);
}
extern "C" __global__ void all_kinds(const float* x, float* f, double* d, int* i, unsigned long long* u) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomic_max(f, x[t]);
    atomicAdd(d, static_cast<double>(x[t]));
    atomicMax(&i[0], t);
    atomicMin(&i[1], -t);
    atomicInc(reinterpret_cast<unsigned*>(&i[2]), 9);
    atomicExch(&i[3], 0);
    atomicAdd(&u[0], static_cast<unsigned long long>(t));
    atomicOr(&u[1], 1ULL << 40 | static_cast<unsigned long long>(t));
}
