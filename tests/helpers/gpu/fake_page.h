/* What all processes share of the devices, in the file that fake_driver.py lays out in the same way. */

#pragma once

#include <pthread.h>
#include <stdint.h>

#define PROCESSES 256
#define FAULTS 8
#define DEVICES 8
#define EXPORT __attribute__((visibility("default")))

struct fault {
  char call[48];
  int32_t error; /* a CUresult; 0: no fault */
  int32_t after; /* calls that work before */
  int32_t times; /* that it fails; negative: for ever */
  int32_t only;  /* on this device, counted from 1; 0: on all */
};

struct process {
  pthread_mutex_t alive; /* robust; held by the process as long as it lives */
  int64_t busy_until_ns;
  int64_t gone_at_ns; /* when its end was noticed; 0: it lives */
  int64_t bytes;
  int32_t device;
  int32_t contexts;
};

struct device {
  int32_t lost;     /* a CUresult that every call ends with; 0: it works */
  int32_t unlike;   /* of another kind than the first */
  int64_t contexts; /* processes that have had one, ended ones included */
};

struct page {
  int64_t ready;
  int64_t memory_bytes; /* of the device */
  int64_t sync_ns;      /* that a wait for the device costs the host, beside waiting */
  int64_t launch_ns;    /* that a launch costs the host */
  int64_t teardown_ns;
  int64_t driver_version;
  int64_t launches; /* by all processes */
  int64_t compute_mode; /* CUcomputemode: whom the devices let in */
  int64_t count;        /* of devices */
  int64_t sm_mhz;       /* their clock, by NVML */
  int64_t throttle_reasons; /* bits of nvmlClocksThrottleReason*, by NVML */
  int64_t nvml_error;   /* an nvmlReturn_t, that questions for a clock end with; 0: none */
  struct fault faults[FAULTS];
  struct device devices[DEVICES];
  struct process processes[PROCESSES];
};
