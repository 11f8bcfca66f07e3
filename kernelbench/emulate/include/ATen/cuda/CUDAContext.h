#pragma once
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAStream.h>
namespace at::cuda {
static inline cudaDeviceProp* getCurrentDeviceProperties() {
    static cudaDeviceProp of;
    cudaGetDeviceProperties(&of, 0);
    return &of;
}
static inline cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}  // namespace at::cuda
