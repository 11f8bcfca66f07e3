// Makes the calls that were recorded, each once, under valgrind. calls.inc is written for each recording.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace driver {

void* found(void* pointer, const char* what) {
    if (pointer == nullptr || pointer == MAP_FAILED) {
        std::fprintf(stderr, "%s: not found\n", what);
        std::exit(3);
    }
    return pointer;
}

void* library(const char* path) { return found(dlopen(path, RTLD_NOW | RTLD_LOCAL), path); }

void* function(void* library, const char* name) { return found(dlsym(library, name), name); }

// Pages that nobody has touched; what is read into them by a system call is in no simulated cache.
char* room(size_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    return static_cast<char*>(found(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0), "memory"));
}

void fill(char* to, const char* path, size_t bytes) {
    const int file = open(path, O_RDONLY);
    while (bytes > 0) {
        const ssize_t got = read(file, to, bytes);
        if (got <= 0) found(nullptr, path);
        to += got;
        bytes -= static_cast<size_t>(got);
    }
    close(file);
}

}  // namespace driver

int main() {
#include "calls.inc"
    return 0;
}
