/* Host functions in the place of kernels of these names, for fake_libcuda.c: each computes what its kernel would,
   and returns the nanoseconds that the device would take. */

#include <stdint.h>

#define KERNEL(name) \
  __attribute__((visibility("default"))) int64_t fake_kernel_##name(void **params, const unsigned *grid, const unsigned *block)
#define ARGUMENT(type, number) (*(type *)params[number])

/* scaled_relu(const float *x, float *y, int n, float factor) */
KERNEL(scaled_relu) {
  const float *x = ARGUMENT(const float *, 0);
  float *y = ARGUMENT(float *, 1);
  const float factor = ARGUMENT(float, 3);
  const int64_t n = ARGUMENT(int, 2), threads = (int64_t)grid[0] * block[0];
  for (int64_t i = 0; i < n && i < threads; i++) y[i] = x[i] > 0.0f ? x[i] * factor : 0.0f;
  return 10000;
}

/* recorded(const double *x, char a, double b, bool c, short d, int64_t *out): what it was given, as integers */
KERNEL(recorded) {
  int64_t *out = ARGUMENT(int64_t *, 5);
  out[0] = (int64_t)ARGUMENT(const double *, 0)[0];
  out[1] = ARGUMENT(signed char, 1);
  out[2] = (int64_t)ARGUMENT(double, 2);
  out[3] = ARGUMENT(_Bool, 3);
  out[4] = ARGUMENT(short, 4);
  out[5] = grid[0] + 1000 * grid[1] + 1000000 * grid[2];
  out[6] = block[0] + 1000 * block[1] + 1000000 * block[2];
  return 0;
}

/* copied(x, y), by Triton: the first number */
KERNEL(copied) {
  ARGUMENT(float *, 1)[0] = ARGUMENT(const float *, 0)[0];
  return 0;
}
