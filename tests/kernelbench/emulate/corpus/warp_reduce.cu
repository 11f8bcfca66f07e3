// A whole warp's sum, least, greatest and bits by one instruction each.
//
//: x, y = randint(-50, 50, (32,), dtype=int32), empty(5, dtype=int32)
//: whole<<<1, 32>>>(x, y)
//: bits = x.tolist()
//: import functools, operator
//: both = [functools.reduce(operator.and_, bits), functools.reduce(operator.xor, bits)]
//: y == tensor([x.sum().item(), x.min().item(), x.max().item(), *both])

extern "C" __global__ void whole(const int* x, int* y) {
    const int v = x[threadIdx.x];
    const int sum = __reduce_add_sync(0xffffffffu, v);
    const int least = __reduce_min_sync(0xffffffffu, v), most = __reduce_max_sync(0xffffffffu, v);
    const unsigned both = __reduce_and_sync(0xffffffffu, static_cast<unsigned>(v));
    const unsigned odd = __reduce_xor_sync(0xffffffffu, static_cast<unsigned>(v));
    if (threadIdx.x == 0) {
        y[0] = sum;
        y[1] = least;
        y[2] = most;
        y[3] = static_cast<int>(both);
        y[4] = static_cast<int>(odd);
    }
}
