// An allocator over one range of device memory, for torch.cuda.MemPool: what torch takes from it in segments,
// its own caching allocator divides. When the range is full, memory comes from the driver as ever.
#include <dlfcn.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

namespace {

constexpr int64_t kAlignment = 512;  // bytes, as cudaMalloc's smallest
std::mutex lock;
std::map<int64_t, int64_t> free_ranges;  // begin -> bytes; neighbours are always merged
int64_t heap_begin = 0, heap_end = 0;

int64_t rounded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

// From now on memory comes from these bytes. They may be opened once.
extern "C" void heap_open(int64_t begin, int64_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    heap_begin = begin;
    heap_end = begin + bytes;
    free_ranges = {{begin, bytes}};
}

// Bytes that are free.
extern "C" int64_t heap_free_bytes() {
    std::lock_guard<std::mutex> guard(lock);
    int64_t sum = 0;
    for (const auto& range : free_ranges) sum += range.second;
    return sum;
}

// The address of `bytes` bytes, from the first free range that holds them; 0 when there is no memory.
extern "C" int64_t heap_allocate(int64_t bytes, int device, int64_t stream) {
    (void)device, (void)stream;
    const int64_t wanted = rounded(bytes);
    {
        std::lock_guard<std::mutex> guard(lock);
        for (auto range = free_ranges.begin(); range != free_ranges.end(); ++range) {
            const int64_t begin = range->first, size = range->second;
            if (size < wanted) continue;
            free_ranges.erase(range);
            if (size > wanted) free_ranges.emplace(begin + wanted, size - wanted);
            return begin;
        }
    }
    using Allocate = int (*)(uint64_t*, size_t);
    const auto allocate = reinterpret_cast<Allocate>(driver("cuMemAlloc_v2"));
    uint64_t address = 0;
    if (allocate == nullptr || allocate(&address, static_cast<size_t>(wanted)) != 0) return 0;
    return static_cast<int64_t>(address);
}

// Gives back what `heap_allocate` gave for so many bytes.
extern "C" void heap_release(int64_t address, int64_t bytes, int device, int64_t stream) {
    (void)device, (void)stream;
    if (address < heap_begin || address >= heap_end) {
        using Free = int (*)(uint64_t);
        const auto release = reinterpret_cast<Free>(driver("cuMemFree_v2"));
        if (release != nullptr) release(static_cast<uint64_t>(address));
        return;
    }
    std::lock_guard<std::mutex> guard(lock);
    auto here = free_ranges.emplace(address, rounded(bytes)).first;
    const auto after = std::next(here);
    if (after != free_ranges.end() && here->first + here->second == after->first) {
        here->second += after->second;
        free_ranges.erase(after);
    }
    if (here == free_ranges.begin()) return;
    const auto before = std::prev(here);
    if (before->first + before->second == here->first) {
        before->second += here->second;
        free_ranges.erase(here);
    }
}
