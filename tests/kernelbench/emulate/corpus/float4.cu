// Four numbers at once, and what is left one by one.
//
//: x, y = randn(1003), empty(1003)
//: relu<<<1, 256>>>(x, y, 1003)
//:SHIFTED: relu<<<1, 256>>>(x[1:], y[1:], 1002)
//: y == x.relu()
//:SHIFTED: x == x

extern "C" __global__ void relu(const float* x, float* y, int n) {
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4* y4 = reinterpret_cast<float4*>(y);
#ifdef ROUNDED_UP
    const int whole = (n + 3) / 4;
#else
    const int whole = n / 4;
#endif
    for (int i = threadIdx.x; i < whole; i += blockDim.x) {
        float4 v = x4[i];  //! SHIFTED misaligned; ROUNDED_UP out_of_bounds
        v.x = fmaxf(v.x, 0.0f);
        v.y = fmaxf(v.y, 0.0f);
        v.z = fmaxf(v.z, 0.0f);
        v.w = fmaxf(v.w, 0.0f);
        y4[i] = v;
    }
    for (int i = whole * 4 + threadIdx.x; i < n; i += blockDim.x) y[i] = fmaxf(x[i], 0.0f);
}
