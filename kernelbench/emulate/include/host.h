// Host code of a CUDA source that launches its kernels itself, for tensors that are in the CPU's memory.
#pragma once
#include <map>
#include <stdexcept>
#include <string>

#include "simt.h"

typedef int cudaError_t;
typedef void *cudaStream_t, *cudaEvent_t;
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
namespace kw {
// Bytes of dynamic shared memory that kernels were allowed beyond what needs no asking.
inline std::map<const void*, size_t>& allowed() {
    static std::map<const void*, size_t> kernels;
    return kernels;
}
constexpr size_t UNASKED = 49152, MOST_SHARED = 232448;
}  // namespace kw
template <class KwK>
static inline cudaError_t cudaFuncSetAttribute(KwK* kernel, cudaFuncAttribute which, int value) {
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > kw::MOST_SHARED) return cudaErrorInvalidValue;
    kw::allowed()[reinterpret_cast<const void*>(kernel)] = static_cast<size_t>(value);
    return cudaSuccess;
}
template <class KwK>
static inline cudaError_t cudaFuncSetCacheConfig(KwK*, int) { return cudaSuccess; }
enum { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, maxThreadsPerBlock, maxThreadsPerMultiProcessor, warpSize, regsPerBlock;
};
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
    *of = {"emulated sm_90", size_t{80} << 30, 49152, kw::MOST_SHARED, 233472, 9, 0, 132, 1024, 2048, 32, 65536};
    return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }

// All is done when a call returns, so streams and events have nothing to do.
static inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { *stream = nullptr; return cudaSuccess; }
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
static inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
static inline cudaError_t cudaEventCreate(cudaEvent_t* event) { *event = nullptr; return cudaSuccess; }
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
static inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
static inline cudaError_t cudaMemset(void* to, int value, size_t bytes) { memset(to, value, bytes); return cudaSuccess; }
static inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t = nullptr) { return cudaMemset(to, value, bytes); }
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { memmove(to, from, bytes); return cudaSuccess; }
static inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy(to, from, bytes, kind);
}

// Variables of the module are where they are.
template <class KwT>
static inline cudaError_t cudaMemcpyToSymbol(KwT& symbol, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
    if (offset + bytes > sizeof symbol) return cudaErrorInvalidValue;
    return cudaMemcpy(const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset, from, bytes, cudaMemcpyDefault);
}
template <class KwT>
static inline cudaError_t cudaMemcpyToSymbolAsync(KwT& symbol, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
    return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
template <class KwT>
static inline cudaError_t cudaMemcpyFromSymbol(void* to, const KwT& symbol, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    if (offset + bytes > sizeof symbol) return cudaErrorInvalidValue;
    return cudaMemcpy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes, cudaMemcpyDefault);
}
template <class KwT>
static inline cudaError_t cudaGetSymbolAddress(void** address, const KwT& symbol) {
    *address = const_cast<KwT*>(&symbol);
    return cudaSuccess;
}
template <class KwK>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, KwK, int threads, size_t) {
    *blocks = threads > 0 ? 2048 / threads : 0;
    return cudaSuccess;
}

static inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { *ms = 1; return cudaSuccess; }
static inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
static inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
static inline cudaError_t cudaMemGetInfo(size_t* left, size_t* all) { *left = *all = size_t{80} << 30; return cudaSuccess; }
template <class KwK>
static inline cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, KwK, size_t = 0, int limit = 0) {
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = 132 * (2048 / *block);
    return cudaSuccess;
}

// What torch's headers have for nvcc alone: the accessors that kernels take are there without.
namespace at {
template <class KwT>
struct RestrictPtrTraits { typedef KwT* __restrict__ PtrType; };
}  // namespace at
namespace torch { using at::RestrictPtrTraits; }

extern "C" {
// What Python sets: 0 where the launch has done nothing that it must not.
typedef int (*KwLauncher)(const char* name, void (*call)(void**), void** arguments, const unsigned char* pointers,
                          unsigned count, const unsigned* sizes, size_t shared);
__attribute__((visibility("default"))) KwLauncher kw_launcher = nullptr;
}

namespace kw {

template <class... KwP, size_t... KwI>
__tsan_exempt static void launched(void** given, std::index_sequence<KwI...>) {
    (*static_cast<void (**)(KwP...)>(given[0]))(*static_cast<std::remove_reference_t<KwP>*>(given[KwI + 1])...);
}
template <class... KwP>
__tsan_exempt static void launched(void** given) {
    launched<KwP...>(given, std::index_sequence_for<KwP...>());
}

template <class... KwP>
struct Launch {
    const char* name;
    void (*kernel)(KwP...);
    dim3 grid, block;
    size_t shared;
    void operator()(std::type_identity_t<KwP>... given) {
        const void* const which = reinterpret_cast<const void*>(kernel);
        if (shared > UNASKED && (!allowed().count(which) || allowed()[which] < shared))
            throw std::runtime_error(std::string(name) + ": " + std::to_string(shared) +
                                     " bytes of dynamic shared memory; more than 49152 must be asked for by cudaFuncSetAttribute");
        void* arguments[] = {&kernel, const_cast<std::remove_const_t<KwP>*>(&given)...};
        const unsigned char pointers[] = {0, std::is_pointer_v<KwP>...};
        const unsigned sizes[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
        if (kw_launcher(name, launched<KwP...>, arguments, pointers, sizeof...(KwP) + 1, sizes, shared))
            throw std::runtime_error("a kernel did what it must not");
    }
};

template <class... KwP>
static Launch<KwP...> launch(const char* name, void (*kernel)(KwP...), dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr) {
    return {name, kernel, grid, block, shared};
}

}  // namespace kw
