#pragma once
#include <c10/cuda/CUDACachingAllocator.h>
namespace c10::cuda {
struct Guard {
    Guard() = default;
    template <class KwD> explicit Guard(const KwD&) {}
    template <class KwD> void set_device(const KwD&) {}
    template <class KwD> void set_index(const KwD&) {}
    template <class KwS> void reset_stream(const KwS&) {}
};
using CUDAGuard = Guard;
using OptionalCUDAGuard = Guard;
using CUDAStreamGuard = Guard;
using OptionalCUDAStreamGuard = Guard;
using CUDAMultiStreamGuard = Guard;
}  // namespace c10::cuda
