// Layer norm of rows by Welford's way, joined over a warp.
//
//: x, w, b, y = randn(4, 75), randn(75), randn(75), empty(4, 75)
//: layer_norm<<<4, 32>>>(x, w, b, y, 75, 1e-5)
//: y == F.layer_norm(x, (75,), w, b)

struct Moments { float mean, m2, count; };

__device__ Moments join(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return {0.0f, 0.0f, 0.0f};
    const float delta = b.mean - a.mean, share = b.count / count;
    return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share, count};
}
extern "C" __global__ void layer_norm(const float* x, const float* w, const float* b, float* y, int n, float eps) {
    Moments mine{0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < n; i += 32) {
        mine.count += 1.0f;
        const float delta = x[blockIdx.x * n + i] - mine.mean;
        mine.mean += delta / mine.count;
        mine.m2 += delta * (x[blockIdx.x * n + i] - mine.mean);
    }
    for (int offset = 16; offset; offset /= 2) {
        Moments other;
        other.mean = __shfl_xor_sync(0xffffffff, mine.mean, offset);
        other.m2 = __shfl_xor_sync(0xffffffff, mine.m2, offset);
        other.count = __shfl_xor_sync(0xffffffff, mine.count, offset);
        mine = join(mine, other);
    }
    const float scale = rsqrtf(mine.m2 / n + eps);
    for (int i = threadIdx.x; i < n; i += 32) {
        const int at = blockIdx.x * n + i;
        y[at] = (x[at] - mine.mean) * scale * w[i] + b[i];
    }
}
