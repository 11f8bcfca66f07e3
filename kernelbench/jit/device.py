"""Kernels of a cubin on a GPU: loaded by the driver, and launched on torch's current stream.

What does not change from launch to launch is kept: the kernel's handle, the check of its arguments
(`callplan`), the buffer that they are packed in for the driver, and what a grid and a block come to. The
rest is a look-up, the check, the packing and cuLaunchKernel, all of which a CUDA graph can capture.
"""

import ctypes
import functools
import importlib
import struct
import threading
from collections.abc import Sequence
from typing import Any

import torch

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.jit import cubin
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.callplan import bind
from kernelwright.kernelbench.jit.cuda_options import CudaOptions
from kernelwright.kernelbench.jit.errors import ArgumentError, LaunchError
from kernelwright.kernelbench.jit.launch_sizes import UNASKED_SHARED, check_sizes, dim
from kernelwright.kernelbench.jit.signature import INTEGERS, Parameter, Signature

_MOST_SIZES = 1024  # grids and blocks that a kernel keeps
_CODES = {  # of struct, for the types of parameters
    "float": "f",
    "double": "d",
    "bool": "?",
    **dict(zip(INTEGERS, "bhiqBHIQ", strict=True)),
}
_NO_CONTEXT = 201  # of the driver's errors: this thread has not used the device yet
_NOT_LOADABLE = {200, 209, 222}  # an invalid image, none for the device, made by something newer


def on_device(source: str, options: CudaOptions, timeout_s: float) -> "DeviceModule":
    """Build `source` for torch's current device, unless that was done before, and load it.

    Raises BuildError, LaunchError and MissingPrerequisite.
    """
    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    code = cubin.kept(source, options.nvrtc, f"sm_{major}{minor}", BuildCache(), timeout_s)
    return DeviceModule(code.read_bytes(), index)


class DeviceModule:
    """A cubin, loaded in torch's context of a device."""

    def __init__(self, code: bytes, index: int) -> None:
        self.driver, self.index = _driver(), index
        self.enter()
        error, self._module = self.driver.cuModuleLoadData(code)
        if int(error) in _NOT_LOADABLE:
            raise MissingPrerequisite(
                f"the driver, of CUDA {self._version()}, cannot load what NVRTC built: {self.said(error)}",
                "update the driver, or install an nvidia-cuda-nvrtc that is not newer",
            )
        self.check("the kernels cannot be loaded", error)

    def enter(self) -> None:
        """Make the device's primary context, which is torch's, this thread's."""
        context = self.call("there is no CUDA context", "cuDevicePrimaryCtxRetain", self.index)
        self.call("there is no CUDA context", "cuCtxSetCurrent", context)

    def bind(self, signature: Signature) -> "DeviceKernel":
        """Return the launcher of a kernel."""
        name = signature.name
        function = self.call(name, "cuModuleGetFunction", self._module, name.encode())
        return DeviceKernel(self, function, signature)

    def call(self, what: str, name: str, *arguments: Any) -> Any:
        """Call the driver. Raises LaunchError, which begins with `what` failed."""
        error, *results = getattr(self.driver, name)(*arguments)
        self.check(what, error)
        return results[0] if results else None

    def check(self, what: str, error: Any) -> None:
        if int(error):
            raise LaunchError(f"{what}: CUDA error: {self.said(error)}")

    def said(self, error: Any) -> str:
        """Describe one of the driver's errors in its words."""
        _, text = self.driver.cuGetErrorString(error)
        return f"{text.decode()} ({error.name})"

    def _version(self) -> str:
        _, version = self.driver.cuDriverGetVersion()
        return f"{version // 1000}.{version % 1000 // 10}"


class DeviceKernel:
    """Launcher of one kernel: `kernel((blocks,), (threads,), (x, y, n), 0)`."""

    def __init__(self, module: DeviceModule, function: Any, signature: Signature) -> None:
        self._module, self._name = module, signature.name
        self._function = function
        attributes = module.driver.CUfunction_attribute
        self._static = module.call(
            self._name, "cuFuncGetAttribute", attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function
        )
        self._allowed = UNASKED_SHARED - self._static  # bytes of dynamic shared memory
        self._sizes: dict[Any, tuple[int, ...]] = {}
        codes = [_code(parameter) for parameter in signature.parameters]
        layout = struct.Struct("".join(codes))
        self._buffer = ctypes.create_string_buffer(layout.size)
        begins = [
            struct.calcsize("".join(codes[: n + 1])) - struct.calcsize(code) for n, code in enumerate(codes)
        ]
        first = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * len(codes))(*(first + begin for begin in begins))
        self._address = ctypes.addressof(self._pointers)  # as cuda-bindings takes them quickest
        pack = functools.partial(layout.pack_into, self._buffer, 0)
        self._pack = bind(signature, pack, f"cuda:{module.index}")
        self._lock = threading.RLock()  # of the buffer
        self._launch = module.driver.cuLaunchKernel
        self._stream, self._device = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared: int
    ) -> None:
        """Launch the kernel. Raises ArgumentError, LaunchError."""
        index = self._module.index
        if self._device() != index:
            with torch.cuda.device(index):
                return self(grid, block, arguments, shared)
        try:
            sizes = self._sizes[grid, block, shared]
        except (KeyError, TypeError):
            sizes = self._sizes_of(grid, block, shared)
        with self._lock:
            self._pack(*arguments)
            (error,) = self._launch(self._function, *sizes, self._stream(index), self._address, 0)
            if error == _NO_CONTEXT:
                self._module.enter()
                (error,) = self._launch(self._function, *sizes, self._stream(index), self._address, 0)
        if error:
            self._module.check(self._name, error)
        return None

    def _sizes_of(self, grid: Sequence[int], block: Sequence[int], shared: int) -> tuple[int, ...]:
        """Check the sizes of a launch, keep them where they cannot change, and allow its shared memory."""
        blocks, threads = dim(self._name, "grid", grid), dim(self._name, "block", block)
        check_sizes(self._name, blocks, threads)
        self._allow(shared)
        sizes = (*blocks, *threads, shared)
        if all(type(size) is int for size in (*grid, *block, shared)) and type(grid) is type(block) is tuple:
            if len(self._sizes) >= _MOST_SIZES:
                self._sizes.clear()
            self._sizes[grid, block, shared] = sizes
        return sizes

    def _allow(self, shared: int) -> None:
        """Allow the kernel this much dynamic shared memory. Raises ArgumentError if it is too much."""
        if 0 <= shared <= self._allowed:
            return
        driver = self._module.driver
        most = self._module.call(
            self._name,
            "cuDeviceGetAttribute",
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            self._module.index,
        )
        if not 0 <= shared <= most - self._static:
            raise ArgumentError(
                f"{self._name}: {shared} bytes of shared memory; must be between 0 and {most - self._static}"
            )
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._module.call(self._name, "cuFuncSetAttribute", self._function, attribute, shared)
        self._allowed = shared


def _code(parameter: Parameter) -> str:
    return "Q" if parameter.pointers else _CODES[parameter.type]


def _driver() -> Any:
    """Return the bindings of the driver, which is initialized. Raises MissingPrerequisite."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        raise MissingPrerequisite("launching CUDA kernels needs cuda-bindings", cubin.FIX) from None
    try:
        (error,) = driver.cuInit(0)
    except RuntimeError as failed:
        problem = str(failed).splitlines()[0]
        raise MissingPrerequisite(f"no CUDA driver ({problem})", "install NVIDIA's driver") from None
    if int(error):
        raise MissingPrerequisite(f"the CUDA driver does not start ({error.name})", "does nvidia-smi work?")
    return driver
