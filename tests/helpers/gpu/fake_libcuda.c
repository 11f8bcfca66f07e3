/* A stand-in for NVIDIA's driver, for tests on machines without a GPU.

   Memory of the device is the host's: physical memory is a memfd, so that it crosses processes as it does on a
   GPU. A kernel is a host function, called at once; what it would take is kept as a timeline. Every process has
   one, in a page that all share: work begins when its process has done what it was given before, and others have
   done theirs or had a slice of time; who waits sleeps until then. A process that has ended leaves the device,
   and its memory, after `teardown_ns`.

   There are several devices, of one kind unless a test says otherwise. A process sees those that
   CUDA_VISIBLE_DEVICES names, and uses the one of its last context.

   The page (fake_page.h) is the file named by FAKE_CUDA_PAGE. Tests write to it what is to fail, and how slow
   things are; see fake_driver.py, which lays it out in the same way. */

#define _GNU_SOURCE
#include "fake_page.h"

#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 80000    /* of a wait that is not slept: waking up takes as long */
#define SLICE_NS 2000000 /* after which a process gets the device from another whose work is not done */

static struct page *page;
static struct process *own;
static pid_t own_pid;
static __thread CUresult sticky;
static __thread CUcontext current;
static int contexts[DEVICES];

struct physical {
  int fd;
  size_t size;
};
struct event {
  int64_t at_ns;
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void wait_until(int64_t end_ns) {
  for (;;) {
    int64_t left = end_ns - now_ns();
    if (left <= 0) return;
    if (left > 2 * SPIN_NS) {
      left -= SPIN_NS;
      struct timespec t = {left / 1000000000LL, left % 1000000000LL};
      nanosleep(&t, NULL);
    }
  }
}

__attribute__((constructor)) static void map_page(void) {
  const char *name = getenv("FAKE_CUDA_PAGE");
  int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) {
    fprintf(stderr, "fake libcuda: FAKE_CUDA_PAGE names no file\n");
    abort();
  }
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page == MAP_FAILED) abort();
  int64_t none = 0;
  if (__atomic_compare_exchange_n(&page->ready, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < PROCESSES; i++) pthread_mutex_init(&page->processes[i].alive, &robust);
    __atomic_store_n(&page->ready, 2, __ATOMIC_SEQ_CST);
  }
  while (__atomic_load_n(&page->ready, __ATOMIC_SEQ_CST) != 2) usleep(100);
}

/* Devices of the page by their ordinals here; returns how many there are. */
static int visible(int devices[DEVICES]) {
  const char *names = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  if (!names) {
    for (; count < page->count; count++) devices[count] = count;
    return count;
  }
  while (count < DEVICES) {
    char *end;
    long device = strtol(names, &end, 10);
    if (end == names || device < 0 || device >= page->count) break;
    devices[count++] = device;
    if (*end != ',') break;
    names = end + 1;
  }
  return count;
}

/* Device of the page that this process uses. */
static int in_use(void) {
  if (own && own_pid == getpid()) return own->device;
  int devices[DEVICES];
  return visible(devices) ? devices[0] : 0;
}

/* Fails as a test has asked for; every call of the driver begins with it. */
static CUresult begin(const char *call) {
  if (sticky) return sticky;
  if (page->devices[in_use()].lost) return page->devices[in_use()].lost;
  for (int i = 0; i < FAULTS; i++) {
    struct fault *f = &page->faults[i];
    size_t length = strlen(f->call); /* "cuMemAlloc" is cuMemAlloc_v2, too */
    if (!f->error || strncmp(f->call, call, length) || (call[length] && call[length] != '_')) continue;
    if (f->only && f->only != in_use() + 1) continue;
    if (__atomic_fetch_sub(&f->after, 1, __ATOMIC_SEQ_CST) > 0) continue;
    if (f->times == 0) continue;
    if (f->times > 0) __atomic_fetch_sub(&f->times, 1, __ATOMIC_SEQ_CST);
    if (f->error >= 700 && f->error < 800) sticky = f->error; /* the context is lost */
    return f->error;
  }
  return CUDA_SUCCESS;
}
#define BEGIN                                 \
  do {                                        \
    CUresult failed = begin(__func__);        \
    if (failed != CUDA_SUCCESS) return failed; \
  } while (0)

/* Take a place in the page; again after a fork. */
static struct process *me(void) {
  if (own && own_pid == getpid()) return own;
  for (int i = 0; i < PROCESSES; i++) {
    struct process *p = &page->processes[i];
    int status = pthread_mutex_trylock(&p->alive);
    if (status == EOWNERDEAD) {
      pthread_mutex_consistent(&p->alive);
      if (p->gone_at_ns == 0) p->gone_at_ns = now_ns();
      if (now_ns() < p->gone_at_ns + page->teardown_ns) {
        pthread_mutex_unlock(&p->alive);
        continue;
      }
      status = 0;
    }
    if (status != 0) continue;
    if (p->gone_at_ns != 0 && now_ns() < p->gone_at_ns + page->teardown_ns) {
      pthread_mutex_unlock(&p->alive);
      continue;
    }
    p->busy_until_ns = p->gone_at_ns = p->bytes = 0;
    int devices[DEVICES];
    p->device = visible(devices) ? devices[0] : 0;
    p->contexts = 0;
    own = p;
    own_pid = getpid();
    return own;
  }
  abort();
}

/* Whether the process in this place still has the device: it lives, or its teardown is not over. */
static int present(struct process *p) {
  int status = pthread_mutex_trylock(&p->alive);
  if (status == EBUSY) return 1;
  if (status == EOWNERDEAD) {
    pthread_mutex_consistent(&p->alive);
    p->gone_at_ns = now_ns();
    p->busy_until_ns = p->gone_at_ns; /* what it had launched ends with it */
  } else if (status != 0) {
    return 1;
  }
  int there = p->gone_at_ns != 0 && now_ns() < p->gone_at_ns + page->teardown_ns;
  if (!there) p->busy_until_ns = p->bytes = p->gone_at_ns = 0;
  pthread_mutex_unlock(&p->alive);
  return there;
}

/* When work of this process that comes now can begin. */
static int64_t device_free_ns(void) {
  int64_t now = now_ns(), until = me()->busy_until_ns;
  if (until < now) until = now;
  for (int i = 0; i < PROCESSES; i++) {
    struct process *p = &page->processes[i];
    if (p == own || p->device != own->device || p->busy_until_ns <= until || !present(p) || p->busy_until_ns <= until) continue;
    return p->busy_until_ns < until + SLICE_NS ? p->busy_until_ns : until + SLICE_NS;
  }
  return until;
}

static void work(int64_t ns) {
  if (page->launch_ns) wait_until(now_ns() + page->launch_ns);
  int64_t from = device_free_ns();
  own->busy_until_ns = ns > INT64_MAX / 4 ? INT64_MAX / 2 : from + ns;
  __atomic_fetch_add(&page->launches, 1, __ATOMIC_SEQ_CST);
}

static CUresult wait_for_device(void) {
  wait_until(me()->busy_until_ns);
  if (page->sync_ns) wait_until(now_ns() + page->sync_ns);
  return CUDA_SUCCESS;
}

/* For tests: `ns` of work on the device. */
EXPORT void fake_work(int64_t ns) { work(ns); }

/* For tests: an error that this thread's context does not recover from. */
EXPORT void fake_lose(int error) { sticky = error; }

EXPORT CUresult cuInit(unsigned flags) {
  BEGIN;
  me();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = page->driver_version;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  BEGIN;
  int devices[DEVICES];
  if (ordinal < 0 || ordinal >= visible(devices)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int *count) {
  BEGIN;
  int devices[DEVICES];
  *count = visible(devices);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  BEGIN;
  int devices[DEVICES];
  if (device < 0 || device >= visible(devices)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, length, page->devices[devices[device]].unlike ? "Another GPU" : "NVIDIA H100 80GB HBM3");
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  BEGIN;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = page->compute_mode; break;
    default: *value = 1;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  BEGIN;
  *bytes = page->memory_bytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  BEGIN;
  int devices[DEVICES];
  if (device < 0 || device >= visible(devices)) return CUDA_ERROR_INVALID_DEVICE;
  me()->device = devices[device];
  if (!own->contexts++) __atomic_fetch_add(&page->devices[own->device].contexts, 1, __ATOMIC_SEQ_CST);
  *context = (CUcontext)&contexts[device];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
  BEGIN;
  *context = current;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  BEGIN;
  current = context;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  BEGIN;
  *device = 0;
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuCtxSynchronize(void) {
  BEGIN;
  return wait_for_device();
}
EXPORT CUresult cuCtxResetPersistingL2Cache(void) {
  BEGIN;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  BEGIN;
  *stream = calloc(1, 8);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamDestroy(CUstream stream) {
  free(stream);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  BEGIN;
  return wait_for_device();
}
EXPORT CUresult cuStreamQuery(CUstream stream) {
  BEGIN;
  return me()->busy_until_ns > now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) { return CUDA_SUCCESS; }

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
  BEGIN;
  *event = calloc(1, sizeof(struct event));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy(CUevent event) {
  free(event);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  BEGIN;
  int64_t until = me()->busy_until_ns, now = now_ns();
  ((struct event *)event)->at_ns = until > now ? until : now;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventQuery(CUevent event) {
  BEGIN;
  return ((struct event *)event)->at_ns > now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
EXPORT CUresult cuEventSynchronize(CUevent event) {
  BEGIN;
  wait_until(((struct event *)event)->at_ns);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  BEGIN;
  *ms = 1e-6f * (((struct event *)end)->at_ns - ((struct event *)start)->at_ns);
  return CUDA_SUCCESS;
}

static int64_t used_bytes(void) {
  int64_t bytes = 0;
  for (int i = 0; i < PROCESSES; i++) {
    struct process *p = &page->processes[i];
    if (p->bytes && p->device == own->device && (p == own || present(p))) bytes += p->bytes;
  }
  return bytes;
}
static CUresult charge(size_t size) {
  me();
  if (used_bytes() + (int64_t)size > page->memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  own->bytes += size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
  BEGIN;
  me();
  *total = page->memory_bytes;
  *free_bytes = page->memory_bytes - used_bytes();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t *granule, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option) {
  *granule = 2 << 20;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
  BEGIN;
  if (size == 0 || size % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id != 0) return CUDA_ERROR_INVALID_DEVICE;
  CUresult failed = charge(size);
  if (failed) return failed;
  struct physical *memory = malloc(sizeof *memory);
  memory->fd = memfd_create("device", MFD_CLOEXEC);
  memory->size = size;
  if (memory->fd < 0 || ftruncate(memory->fd, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  struct physical *memory = (void *)(uintptr_t)handle;
  if (memory->size) own->bytes -= memory->size;
  close(memory->fd);
  free(memory);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long flags) {
  BEGIN;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  *(int *)out = fcntl(((struct physical *)(uintptr_t)handle)->fd, F_DUPFD_CLOEXEC, 3);
  return *(int *)out < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *given,
                                               CUmemAllocationHandleType type) {
  BEGIN;
  struct physical *memory = malloc(sizeof *memory);
  memory->fd = fcntl((int)(intptr_t)given, F_DUPFD_CLOEXEC, 3);
  memory->size = 0; /* charged where it was created */
  if (memory->fd < 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags) {
  BEGIN;
  void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = (CUdeviceptr)at;
  return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  munmap((void *)address, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  BEGIN; /* readable once cuMemSetAccess was called */
  int fd = ((struct physical *)(uintptr_t)handle)->fd;
  void *at = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, offset);
  return at == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  BEGIN;
  void *at = mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
  BEGIN;
  int protection = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ;
  return mprotect((void *)address, size, protection) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuMemAlloc(CUdeviceptr *address, size_t size) {
  BEGIN;
  CUresult failed = charge(size);
  if (failed) return failed;
  *address = (CUdeviceptr)calloc(1, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFree(CUdeviceptr address) {
  free((void *)address);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  BEGIN;
  memcpy((void *)to, from, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  BEGIN;
  memcpy(to, (void *)from, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  BEGIN;
  memset((void *)to, value, count);
  return CUDA_SUCCESS;
}

/* The kernels of all modules are host functions, those of host_kernels.c among them: fake_kernel_NAME(params,
   grid, block) computes, and returns the nanoseconds that the device would take. */
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  BEGIN;
  if (memcmp(image, "\177ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
  *module = (CUmodule)image;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  BEGIN;
  char symbol[256];
  snprintf(symbol, sizeof symbol, "fake_kernel_%s", name);
  *function = (CUfunction)dlsym(RTLD_DEFAULT, symbol);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  BEGIN;
  return value > 232448 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
  BEGIN;
  if (!gx || !gy || !gz || bx * by * bz - 1 >= 1024 || shared > 232448) return CUDA_ERROR_INVALID_VALUE;
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  int64_t (*call)(void **, const unsigned *, const unsigned *) = (void *)function;
  work(call(params, grid, block));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                        config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, params, extra);
}
/* NVRTC asks for a table of the driver's internals where there is a driver. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  *table = NULL;
  return CUDA_ERROR_NOT_SUPPORTED;
}
/* The rest of what Triton asks. */
EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  *(CUdeviceptr *)data = address;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status) {
  static void *self;
  if (!self) self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  static const char *suffixes[] = {"", "_v2", "_v3", "_v4"};
  *function = NULL;
  for (int i = 0; i < 4 && !*function; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
    *function = dlsym(self, name);
  }
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
