// A product of int8 by four at once, with a scale for each row.
//
//: a, x, scale, y = randint(-128, 128, (8, 128), dtype=int8), randint(-128, 128, (128,), dtype=int8), rand(8), empty(8)
//: gemv<<<8, 32>>>(a, x, scale, y, 128)
//: y == (a.int() @ x.int()).float() * scale

extern "C" __global__ void gemv(const signed char* a, const signed char* x, const float* scale, float* y, int n) {
    const int* a4 = reinterpret_cast<const int*>(a + blockIdx.x * n);
    const int* x4 = reinterpret_cast<const int*>(x);
    int sum = 0;
    for (int i = threadIdx.x; i < n / 4; i += 32) sum = __dp4a(a4[i], x4[i], sum);
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (threadIdx.x == 0) y[blockIdx.x] = static_cast<float>(sum) * scale[blockIdx.x];
}
