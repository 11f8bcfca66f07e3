// Seven points in three dimensions, inner ones only.
//
//: x = randn(6, 7, 8); y = x.clone()
//: stencil<<<(2, 2, 2), (4, 4, 4)>>>(x, y, 6, 7, 8)
//: near = x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1] + x[1:-1, 2:, 1:-1] + x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:]
//: z = x.clone(); z[1:-1, 1:-1, 1:-1] = near - 6 * x[1:-1, 1:-1, 1:-1]
//: y == z

extern "C" __global__ void stencil(const float* x, float* y, int nz, int ny, int nx) {
    const int i = blockIdx.x * 4 + threadIdx.x, j = blockIdx.y * 4 + threadIdx.y, k = blockIdx.z * 4 + threadIdx.z;
#ifdef EDGES
    if (i >= nx || j >= ny || k >= nz) return;
#else
    if (i < 1 || j < 1 || k < 1 || i >= nx - 1 || j >= ny - 1 || k >= nz - 1) return;
#endif
    const int at = (k * ny + j) * nx + i;
    y[at] = x[at - nx * ny] + x[at - nx] + x[at - 1] + x[at + 1] + x[at + nx] + x[at + nx * ny] - 6.0f * x[at];  //! EDGES out_of_bounds
}
