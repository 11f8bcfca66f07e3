/* A stand-in for NVIDIA's management library: the clocks of the devices of a page, as a test has set them.

   Unlike the driver it sees all devices, whatever CUDA_VISIBLE_DEVICES says. Device N is called
   GPU-000000NN-0000-0000-0000-000000000000. */

#include "fake_page.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6 }; /* of nvmlReturn_t */

static struct page *page;

/* For tests: the devices are those of the page in this file; of none if it is NULL. */
EXPORT int fake_nvml_open(const char *file) {
  if (page) munmap(page, sizeof *page);
  page = NULL;
  int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return file != NULL;
  void *at = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at != MAP_FAILED) page = at;
  return page == NULL;
}

static void name_of(unsigned device, char name[48]) {
  snprintf(name, 48, "GPU-%08x-0000-0000-0000-000000000000", device);
}

EXPORT int nvmlInitWithFlags(unsigned flags) { return page ? SUCCESS : UNINITIALIZED; }
EXPORT int nvmlShutdown(void) { return SUCCESS; }
EXPORT const char *nvmlErrorString(int error) { return error == SUCCESS ? "Success" : "an error"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = page->count;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= page->count) return INVALID_ARGUMENT;
  *device = (void *)(uintptr_t)(index + 1);
  return SUCCESS;
}
EXPORT int nvmlDeviceGetUUID(void *device, char *name, unsigned size) {
  char whole[48];
  name_of((uintptr_t)device - 1, whole);
  snprintf(name, size, "%s", whole);
  return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
  char whole[48];
  for (int64_t i = 0; i < page->count; i++) {
    name_of(i, whole);
    if (!strcmp(name, whole)) return nvmlDeviceGetHandleByIndex_v2(i, device);
  }
  return NOT_FOUND;
}
EXPORT int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
  *mhz = page->sm_mhz;
  return page->nvml_error;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  *reasons = page->throttle_reasons;
  return page->nvml_error;
}
