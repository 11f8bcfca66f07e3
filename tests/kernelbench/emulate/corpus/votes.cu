// Votes of a warp and of a block, and who has the same number.
//
//: x, y = randint(0, 4, (64,), dtype=int32), empty(6, 64, dtype=int32)
//: votes<<<1, 64>>>(x, y)
//: a, b, c, d, e, f = y.reshape(6, 64)
//: warps = x.reshape(2, 32)
//: a == (warps == 0).sum(1, keepdim=True).expand(2, 32).reshape(64)
//: b == (x == 0).sum().expand(64)
//: c == (warps[:, None] == warps[:, :, None]).sum(2).reshape(64)
//: d == ones(64)
//: e == zeros(64)
//: f == (warps == 3).any(1, keepdim=True).expand(2, 32).reshape(64)

extern "C" __global__ void votes(const int* x, int* y) {
    const int t = threadIdx.x;
    y[t] = __popc(__ballot_sync(0xffffffffu, x[t] == 0));
    y[64 + t] = __syncthreads_count(x[t] == 0);
    y[128 + t] = __popc(__match_any_sync(0xffffffffu, x[t]));
    y[192 + t] = __syncthreads_and(x[t] < 4);
    y[256 + t] = __syncthreads_or(x[t] == 4);
    y[320 + t] = __any_sync(0xffffffffu, x[t] == 3);
}
