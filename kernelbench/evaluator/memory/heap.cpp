// An allocator over one range of device memory, for torch.cuda.MemPool: what torch takes from it in segments,
// its own caching allocator divides, and never gives back. When the range is full, memory comes from the
// driver as ever.
#include <dlfcn.h>

#include <cstdint>
#include <mutex>

namespace {

constexpr int64_t kAlignment = 512;  // bytes, as cudaMalloc's smallest
std::mutex lock;
int64_t heap_begin = 0, heap_next = 0, heap_end = 0;

void* driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

// From now on memory comes from these bytes. They may be opened once.
extern "C" void heap_open(int64_t begin, int64_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    heap_begin = heap_next = begin;
    heap_end = begin + bytes;
}

// The address of `bytes` bytes; 0 when there is no memory.
extern "C" int64_t heap_allocate(int64_t bytes, int device, int64_t stream) {
    (void)device, (void)stream;
    const int64_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    {
        std::lock_guard<std::mutex> guard(lock);
        if (wanted <= heap_end - heap_next) {
            heap_next += wanted;
            return heap_next - wanted;
        }
    }
    using Allocate = int (*)(uint64_t*, size_t);
    const auto allocate = reinterpret_cast<Allocate>(driver("cuMemAlloc_v2"));
    uint64_t address = 0;
    if (allocate == nullptr || allocate(&address, static_cast<size_t>(wanted)) != 0) return 0;
    return static_cast<int64_t>(address);
}

// Gives the driver's memory back; the range is not taken from twice.
extern "C" void heap_release(int64_t address, int64_t bytes, int device, int64_t stream) {
    (void)bytes, (void)device, (void)stream;
    if (heap_begin <= address && address < heap_end) return;
    using Free = int (*)(uint64_t);
    const auto release = reinterpret_cast<Free>(driver("cuMemFree_v2"));
    if (release != nullptr) release(static_cast<uint64_t>(address));
}
