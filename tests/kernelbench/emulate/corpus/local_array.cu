// A small table of each thread's own, sorted by insertion.
//
//: x, y = randn(16, 20), empty(16, 20)
//: order<<<1, 16>>>(x, y)
//: y == x.sort(1).values

extern "C" __global__ void order(const float* x, float* y) {
    float kept[20];
    for (int i = 0; i < 20; ++i) {
        const float v = x[threadIdx.x * 20 + i];
        int at = i;
        for (; at > 0 && kept[at - 1] > v; --at) kept[at] = kept[at - 1];
        kept[at] = v;
    }
    for (int i = 0; i < 20; ++i) y[threadIdx.x * 20 + i] = kept[i];
}
