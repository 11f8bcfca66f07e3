"""Worker entry that looks at a GPU through the driver: what it is, or what keeps it from being a target.

It asks in the order in which things go wrong: the driver's library, its version, its devices, a context,
torch. Each answer that is an error comes with its fix. Errors of the driver are listed under CUresult in
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelwright.kernelbench.devices import target_names
from kernelwright.kernelbench.evaluator.processes.channel import Channel

DEV = Path("/dev")
_CONTEXT_BYTES = 1 << 30  # of a context, kernels of torch included; 0.5 GiB on an H200
_SEE = "see what `nvidia-smi` and `dmesg` say"
_IN_A_CONTAINER = "in a container, start it with `--gpus all`"
_BY_ERROR = {
    2: ("has no memory left for a context", "end what fills it (`nvidia-smi` lists it)"),
    34: ("cannot be used: libcuda.so.1 is the CUDA toolkit's stub", "take its folder off LD_LIBRARY_PATH"),
    46: ("is held by another process, which has it for itself",
         "end that process (`nvidia-smi` lists it), or `nvidia-smi -c DEFAULT`"),
    100: ("is not there: the driver finds no GPU", f"check CUDA_VISIBLE_DEVICES; {_IN_A_CONTAINER}"),
    101: ("is not there", "check CUDA_VISIBLE_DEVICES, and `nvidia-smi -L`"),
    802: ("is not ready: the fabric manager does not run", "systemctl start nvidia-fabricmanager"),
    803: ("cannot be used: libcuda.so.1 and the system's module are of different drivers",
          "restart the machine"),
}  # fmt: skip


class _Unusable(Exception):  # noqa: N818 - a state of the machine
    """A GPU that cannot be a target, and how that can be changed."""

    def __init__(self, error: str, fix: str) -> None:
        super().__init__(error)
        self.fix = fix


def serve(channel: Channel) -> None:
    """Answers "describe" with a description of its "device", or the "error" and its "fix"."""
    while True:
        message, _ = channel.receive_json()
        try:
            answer = described(message["device"])
        except _Unusable as unusable:
            answer = {"error": " ".join(str(unusable).split()), "fix": unusable.fix}
        channel.send_json(answer)


def described(name: str) -> dict[str, object]:
    """Description of the GPU `name`, "cuda:0". Raises _Unusable."""
    driver, index = _driver(), int(name.partition(":")[2] or 0)
    _check_versions(driver)
    _call(driver, "cuInit", 0)
    count = _call(driver, "cuDeviceGetCount")
    if index >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f", with CUDA_VISIBLE_DEVICES={visible}"
        raise _Unusable(
            f"the driver has {count} GPU{'s' * (count != 1)}{hidden}", f"use --target {target_names(count)}"
        )
    free_bytes, total_bytes = _memory(driver, _call(driver, "cuDeviceGet", index))
    try:
        found = torch.cuda.get_device_properties(torch.device(name))
    except (RuntimeError, AssertionError) as error:
        raise _Unusable(f"torch cannot use it: {error}", "reinstall torch for CUDA") from None
    return {
        "chip": found.name,
        "memory_bytes": found.total_memory,
        "cache_bytes": found.L2_cache_size,
        "capability": f"sm_{found.major}{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "cuda": torch.version.cuda,
        "in_use_bytes": max(0, total_bytes - free_bytes - _CONTEXT_BYTES),
    }


def _driver() -> Any:
    """Return the driver, through its bindings. Raises _Unusable."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        nodes = "" if any(DEV.glob("nvidia[0-9]*")) else ", and there is no /dev/nvidia0"
        reason = "is not found" if "No such file" in str(error) else f"cannot be loaded ({error})"
        fix = f"install NVIDIA's driver; {_IN_A_CONTAINER}"
        raise _Unusable(f"the driver's libcuda.so.1 {reason}{nodes}", fix) from None
    try:
        from cuda.bindings import driver
    except ImportError as error:
        fix = "pip install 'cuda-bindings>=13,<14', or 'kernelwright[cuda]'"
        raise _Unusable(f"cuda-bindings cannot be imported: {error}", fix) from None
    return driver


def _check_versions(driver: Any) -> None:
    """Raise _Unusable unless the driver is as new as the CUDA that torch was built for."""
    built = torch.version.cuda
    if built is None:
        raise _Unusable(
            f"torch {torch.__version__} is built for CPUs", "install a torch that is built for CUDA"
        )
    version = _call(driver, "cuDriverGetVersion")
    if version // 1000 < int(built.partition(".")[0]):
        known = f"{version // 1000}.{version % 1000 // 10}"
        fix = f"update the driver, or install a torch that is built for CUDA {version // 1000}"
        raise _Unusable(f"the driver is too old: it knows CUDA {known}, torch is built for {built}", fix)


def _memory(driver: Any, device: Any) -> tuple[int, int]:
    """Return the free and all bytes, from within a context as the evaluator's processes have one each."""
    mode = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
    if int(_call(driver, "cuDeviceGetAttribute", mode, device)) != 0:
        raise _Unusable(
            "its compute mode lets one process in at most, and an evaluation has several",
            "`nvidia-smi -c DEFAULT`, as root",
        )
    _call(driver, "cuCtxSetCurrent", _call(driver, "cuDevicePrimaryCtxRetain", device))
    free_bytes, total_bytes = _call(driver, "cuMemGetInfo")
    return int(free_bytes), int(total_bytes)


def _call(driver: Any, function: str, *arguments: Any) -> Any:
    """Return the results of a call of the driver, one alone as it is. Raises _Unusable."""
    error, *results = getattr(driver, function)(*arguments)
    if int(error) == 0:
        return results[0] if len(results) == 1 else results
    if int(error) in _BY_ERROR:
        state, fix = _BY_ERROR[int(error)]
        raise _Unusable(f"it {state}", fix)
    for problem, fix in _nodes():  # as the driver itself does not say
        raise _Unusable(problem, fix)
    raise _Unusable(f"{function} fails with {getattr(error, 'name', error)}", _SEE)


def _nodes() -> Iterator[tuple[str, str]]:
    """Return problems of the files that the driver opens, with their fixes.

    The driver's tool makes a file that is missing on first use, as root, which no sandbox lets it do.
    """
    gpus = sorted(DEV.glob("nvidia[0-9]*")) or [DEV / "nvidia0"]
    for file in (DEV / "nvidiactl", *gpus, DEV / "nvidia-uvm"):
        if not file.exists():
            first = "`nvidia-modprobe -u -c 0` as root, or `python -c 'import torch; torch.zeros(1).cuda()'`"
            yield f"the driver's file {file} is missing", f"run {first}, once"
        elif not os.access(file, os.R_OK | os.W_OK):
            yield f"the driver's file {file} may not be opened", "join the group that owns it"
