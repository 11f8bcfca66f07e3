// Bytes of a word by a union, in and out, and through shared memory that is declared as words.
//
//: x, y = randint(-2**31, 2**31 - 1, (32,), dtype=int32), empty(32, dtype=int32)
//: swap<<<1, 32>>>(x, y)
//: y == x.view(uint8).reshape(32, 4).flip(1).contiguous().view(int32).reshape(32)

union Word { int whole; unsigned char bytes[4]; };
extern "C" __global__ void swap(const int* x, int* y) {
    __shared__ int words[32];
    unsigned char* bytes = reinterpret_cast<unsigned char*>(words);
    Word w;
    w.whole = x[threadIdx.x];
    for (int i = 0; i < 4; ++i) bytes[threadIdx.x + 32 * i] = w.bytes[3 - i];
    __syncthreads();
    for (int i = 0; i < 4; ++i) w.bytes[i] = bytes[threadIdx.x + 32 * i];
    y[threadIdx.x] = w.whole;
}
