"""Clocks of a GPU while something was timed, from NVIDIA's management library."""

import contextlib
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from kernelwright.kernelbench.devices import visible_name
from kernelwright.kernelbench.records import GpuClocks

_EVERY_S = 0.05  # seconds between two readings; chosen by hand
# Reasons of nvml.h for running below the clock that was asked for, that make timings say less.
_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "temperature", 0x40: "hardware temperature",
            0x80: "power brake"}  # fmt: skip


def nvml() -> ModuleType | None:
    """pynvml, initialized; None where it or the driver is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - an NVMLError that only exists when the import succeeded
        return None
    return pynvml


def gpu_count() -> int | None:
    """GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says; None where that is not known."""
    library = nvml()
    return None if library is None else int(library.nvmlDeviceGetCount())


def _handle(library: ModuleType, device: str) -> Any:
    """NVML's for "cuda:N"; unlike CUDA it sees all GPUs, whatever CUDA_VISIBLE_DEVICES says."""
    name = visible_name(device)
    if name.isdigit():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    if name.startswith("GPU-"):  # CUDA takes the beginning of a UUID, NVML does not
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            if library.nvmlDeviceGetUUID(handle).startswith(name):
                return handle
    return library.nvmlDeviceGetHandleByUUID(name)


class Watch:
    """Looks at the clocks every 50 ms, in a thread of the referee."""

    def __init__(self, library: ModuleType, device: str) -> None:
        self._library = library
        self._handle = _handle(library, device)
        self._mhz: list[int] = []
        self._reasons = 0
        self._over = threading.Event()

    def _look(self) -> None:
        library = self._library
        self._mhz.append(library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_SM))
        self._reasons |= library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            with contextlib.suppress(self._library.NVMLError):
                self._look()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> GpuClocks | None:
        """Return the clocks that were seen; None if there were none."""
        self._over.set()
        self._thread.join()
        if not self._mhz:
            return None
        return GpuClocks(
            sm_mhz_low=min(self._mhz),
            sm_mhz_high=max(self._mhz),
            throttled=tuple(why for bit, why in _REASONS.items() if self._reasons & bit),
        )


@contextlib.contextmanager
def watched(device: str) -> Iterator[list[GpuClocks]]:
    """Around timing: afterwards the list holds what a GPU's clocks did, if that can be known."""
    seen: list[GpuClocks] = []
    library = nvml() if device.startswith("cuda") else None
    watch = None
    if library is not None:
        with contextlib.suppress(library.NVMLError):
            watch = Watch(library, device)
    if watch is None:
        yield seen
        return
    watch.start()
    try:
        yield seen
    finally:
        found = watch.stop()
        if found is not None:
            seen.append(found)
