// Host code of a CUDA source that launches its kernels itself, for tensors that are in the CPU's memory.
#pragma once
#include <stdexcept>

#include "simt.h"

typedef int cudaError_t;
typedef void* cudaStream_t;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlock, cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrMultiProcessorCount, cudaDevAttrMaxThreadsPerBlock, cudaDevAttrWarpSize };

// Of an sm_90.
static inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
    const int values[] = {49152, 232448, 132, 1024, 32};
    *value = values[which];
    return cudaSuccess;
}
static inline cudaError_t cudaGetLastError() { return cudaSuccess; }
static inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
static inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
template <class K>
static inline cudaError_t cudaFuncSetAttribute(K*, cudaFuncAttribute, int) { return cudaSuccess; }
static inline cudaError_t cudaMemset(void* to, int value, size_t bytes) { memset(to, value, bytes); return cudaSuccess; }
static inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t = nullptr) { return cudaMemset(to, value, bytes); }
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { memmove(to, from, bytes); return cudaSuccess; }
static inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy(to, from, bytes, kind);
}

namespace at::cuda {
struct CUDAStream {
    cudaStream_t stream() const { return nullptr; }
    operator cudaStream_t() const { return nullptr; }
};
static inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
static inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
struct CUDAGuard { template <class D> explicit CUDAGuard(const D&) {} };
struct OptionalCUDAGuard { template <class D> explicit OptionalCUDAGuard(const D&) {} };
}  // namespace at::cuda
namespace c10::cuda { using namespace at::cuda; }
#define C10_CUDA_CHECK(call) ((void)(call))
#define AT_CUDA_CHECK(call) ((void)(call))
#define TORCH_CUDA_CHECK(call) ((void)(call))
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ((void)0)

extern "C" {
// What Python sets: 0 where the launch has done nothing that it must not.
typedef int (*KwLauncher)(const char* name, void (*call)(void**), void** arguments, const unsigned char* pointers,
                          unsigned count, const unsigned* sizes, size_t shared);
__attribute__((visibility("default"))) KwLauncher kw_launcher = nullptr;
}

namespace kw {

template <class... P, size_t... I>
__tsan_exempt static void launched(void** given, std::index_sequence<I...>) {
    (*static_cast<void (**)(P...)>(given[0]))(*static_cast<std::remove_reference_t<P>*>(given[I + 1])...);
}
template <class... P>
__tsan_exempt static void launched(void** given) {
    launched<P...>(given, std::index_sequence_for<P...>());
}

template <class... P>
struct Launch {
    const char* name;
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared;
    void operator()(std::type_identity_t<P>... given) {
        void* arguments[] = {&kernel, const_cast<std::remove_const_t<P>*>(&given)...};
        const unsigned char pointers[] = {0, std::is_pointer_v<P>...};
        const unsigned sizes[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
        if (kw_launcher(name, launched<P...>, arguments, pointers, sizeof...(P) + 1, sizes, shared))
            throw std::runtime_error("a kernel did what it must not");
    }
};

template <class... P>
static Launch<P...> launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr) {
    return {name, kernel, grid, block, shared};
}

}  // namespace kw
