// Tricks with bits: parity, reversal, the exponent, sorted keys of floats.
//
//: x, y = randint(1, 1 << 30, (64,), dtype=int32), empty(4, 64, dtype=int32)
//: bits<<<1, 64>>>(x, y)
//: a, b, c, d = y
//: a == tensor([v.bit_count() % 2 for v in x.tolist()])
//: b == tensor([v.bit_length() for v in x.tolist()])
//: c == x
//: d == (x.float().frexp().exponent - 1)

extern "C" __global__ void bits(const int* x, int* y) {
    const int t = threadIdx.x, v = x[t];
    y[t] = __popc(v) & 1;
    y[64 + t] = 32 - __clz(v);
    y[128 + t] = static_cast<int>(__brev(__brev(static_cast<unsigned>(v))));
    y[192 + t] = (__float_as_int(static_cast<float>(v)) >> 23 & 0xff) - 127;
}
