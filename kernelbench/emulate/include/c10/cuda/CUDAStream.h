#pragma once
#include <c10/cuda/CUDAFunctions.h>
namespace c10::cuda {
struct CUDAStream {
    cudaStream_t stream() const { return nullptr; }
    void synchronize() const {}
    int device_index() const { return 0; }
    bool query() const { return true; }
    operator cudaStream_t() const { return nullptr; }
};
static inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
static inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
static inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
static inline CUDAStream getStreamFromPool(int, int = -1) { return {}; }
static inline void setCurrentCUDAStream(CUDAStream) {}
}  // namespace c10::cuda
