// Dynamic shared memory as published kernels declare it: in templates, in a helper that gives it by type, with
// qualifiers in any order, for the whole file, in rows, and by the array's own address.
//: x = randn(256)
//: y = empty(256)
//: forms<<<1, 256, 1024>>>(x, y)
//: y == x.flip(0) * 8
//:SHORT: forms<<<1, 256, 1020>>>(x, y)
extern __shared__ double of_the_file[];

template <typename T>
struct SharedMemory {
    __device__ operator T*() {
        extern __shared__ __align__(sizeof(T)) unsigned char raw[];
        return reinterpret_cast<T*>(raw);
    }
};

template <typename T>
__device__ T reversed_by_helper(T value) {
    T* kept = SharedMemory<T>();
    kept[threadIdx.x] = value;  //! SHORT out_of_bounds
    __syncthreads();
    T result = kept[255 - threadIdx.x];  //! SHORT out_of_bounds
    __syncthreads();
    return result;
}

template <typename T, int N>
__device__ T kept_in_a_template(T value) {
    extern __align__(16) __shared__ T mine[];
    mine[threadIdx.x] = value * N;
    __syncthreads();
    T result = mine[threadIdx.x];
    __syncthreads();
    return result;
}

namespace inner {
__device__ float in_rows(float value) {
    extern volatile __shared__ float rows[][32];
    rows[threadIdx.x / 32][threadIdx.x % 32] = value * 2;
    __syncthreads();
    float result = rows[threadIdx.x / 32][threadIdx.x % 32];
    __syncthreads();
    return result;
}
}  // namespace inner

extern "C" __global__ void forms(const float* x, float* y) {
    extern __shared__ float by_address[];
    float value = inner::in_rows(kept_in_a_template<float, 4>(reversed_by_helper(x[threadIdx.x])));
    *((float*)&by_address + threadIdx.x) = value;
    __syncthreads();
    y[threadIdx.x] = reinterpret_cast<float*>(of_the_file)[threadIdx.x];
}
