"""A GPU for machines without one: a driver of the tests' own behind the real cuda-bindings.

    with fake_driver(tmp_path) as page:
        page.fail("cuMemCreate", OUT_OF_MEMORY, times=2)

It is loaded in the place of libcuda.so.1 by whoever imports `fake_gpu`, a module that lies in a folder of
PYTHONPATH as long as the block lasts: the evaluator's fork server, see `tests.helpers.gpu.evaluating`.
"""

import contextlib
import ctypes
import functools
import mmap
import os
import subprocess
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OUT_OF_MEMORY, UNAVAILABLE, ILLEGAL_ADDRESS, NOT_SUPPORTED = 2, 46, 700, 801
_FAULTS, _PROCESSES, _DEVICES = 8, 256, 8


class Fault(ctypes.Structure):
    """A call that fails: after `after` calls that work, `times` times; for ever if that is negative."""

    _fields_ = (("call", ctypes.c_char * 48), ("error", ctypes.c_int32), ("after", ctypes.c_int32),
                ("times", ctypes.c_int32), ("only", ctypes.c_int32))  # fmt: skip


class _Process(ctypes.Structure):
    _fields_ = (("alive", ctypes.c_char * 40), ("busy_until_ns", ctypes.c_int64),
                ("gone_at_ns", ctypes.c_int64), ("bytes", ctypes.c_int64),
                ("device", ctypes.c_int32), ("contexts", ctypes.c_int32))  # fmt: skip


class Device(ctypes.Structure):
    """A device: the error that all its calls end with, and how many processes have had a context on it."""

    _fields_ = (("lost", ctypes.c_int32), ("unlike", ctypes.c_int32), ("contexts", ctypes.c_int64))


class Page(ctypes.Structure):
    """What all processes share of the devices; the driver's own view is in fake_libcuda.c.

    `memory_bytes`: of each device; `count`: of devices.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("ready", "memory_bytes", "sync_ns", "launch_ns", "teardown_ns",
                                              "driver_version", "launches", "compute_mode", "count", "sm_mhz",
                                              "throttle_reasons", "nvml_error")),
        ("faults", Fault * _FAULTS),
        ("devices", Device * _DEVICES),
        ("processes", _Process * _PROCESSES),
    )  # fmt: skip

    def fail(self, call: str, error: int, after: int = 0, times: int = 1, device: int | None = None) -> None:
        """Have a call of the driver fail, of whichever process comes first; on one device, or on all."""
        fault = next(fault for fault in self.faults if not fault.error)
        fault.call, fault.after, fault.times = call.encode(), after, times
        fault.only = 0 if device is None else device + 1
        fault.error = error

    @property
    def used_bytes(self) -> int:
        """Memory of the devices that is in use, if no process has ended since it was last asked for some."""
        return sum(process.bytes for process in self.processes)


def cuda_headers() -> Path:
    """Folder of cuda.h, which Triton brings along."""
    spec = find_spec("triton")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "include"


@functools.cache
def library() -> Path:
    """The driver, built, with the host functions that its kernels are: libcuda.so.1."""
    sources = ("fake_libcuda.c", "host_kernels.c")
    return _built("libcuda.so.1", sources, "-I", str(cuda_headers()), "-lpthread", "-ldl")


@functools.cache
def management_library() -> ctypes.CDLL:
    """NVML, built and loaded by this process: the referee asks it."""
    return ctypes.CDLL(str(_built("libnvidia-ml.so.1", ("fake_nvml.c",))))


def _built(name: str, sources: Sequence[str], *more: str) -> Path:
    built = Path(mkdtemp(prefix="fake-gpu-")) / name
    words = ["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}", "-o", str(built)]
    subprocess.run([*words, *(str(HERE / source) for source in sources), *more], check=True)
    built.parent.chmod(0o755)
    return built


@contextlib.contextmanager
def _managed(page: Path) -> Iterator[None]:
    """Have pynvml find the tests' own NVML in the block, where pynvml is installed."""
    if find_spec("pynvml") is None:
        yield
        return
    import pynvml

    nvml = management_library()
    before, functions = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = nvml
    assert nvml.fake_nvml_open(str(page).encode()) == 0
    try:
        yield
    finally:
        nvml.fake_nvml_open(None)
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(functions)


@contextlib.contextmanager
def fake_driver(folder: Path, memory_bytes: int = 8 << 30, devices: int = 1) -> Iterator[Page]:
    """Have devices of one kind, with so much memory each, in the block for who imports `fake_gpu`."""
    file = folder / "page"
    file.write_bytes(bytes(ctypes.sizeof(Page)))
    (folder / "fake_gpu.py").write_text(
        f"import os\nos.environ['FAKE_CUDA_PAGE'] = {str(file)!r}\nos.environ['FAKE_CUDA'] = {str(library())!r}\n"
        f"import sys\nsys.path.append({str(ROOT)!r})\nimport tests.helpers.gpu.fake_torch\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [before])])
    with file.open("r+b") as opened:
        page = Page.from_buffer(mmap.mmap(opened.fileno(), 0))  # which closes it with the page
    page.memory_bytes, page.driver_version, page.count = memory_bytes, 13000, devices
    page.sm_mhz = 1980
    try:
        with _managed(file):
            yield page
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
