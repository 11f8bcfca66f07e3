"""`compile_cuda` of a package: its cubins are loaded by the driver, and launched on torch's current stream.

There is one for each compute capability that the package is for, as `libraries/KEY.sm_90.cubin`; `kernel.py`
has the source that they were built from. The driver is called through ctypes, with no toolkit and no NVRTC.
Where an emulator stands in for a GPU (`device.IS_EMULATED`), it is kernelwright's, which must be installed.
https://docs.nvidia.com/cuda/cuda-driver-api
"""

import ctypes
import functools
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .built import FOLDER, built, checked
from .device import IS_EMULATED

_CODES = {  # of struct, for the types of parameters
    "bool": "?",
    "float": "f",
    "double": "d",
    **dict(zip((f"int{bits}" for bits in (8, 16, 32, 64)), "bhiq", strict=True)),
    **dict(zip((f"uint{bits}" for bits in (8, 16, 32, 64)), "BHIQ", strict=True)),
}
_NO_CONTEXT = 201  # of the driver's errors: this thread has not used the device yet
_STATIC_SHARED, _DYNAMIC_SHARED = 1, 8  # attributes of a function, in bytes
_UNASKED_SHARED = 49152  # bytes of shared memory that a block has without asking


def compile_cuda(source: str, options: Sequence[str] = (), *, timeout_s: float = 0.0) -> Any:
    """Return the kernels built from this source, each an attribute. Raises ImportError if there are none."""
    if IS_EMULATED:
        try:
            from kernelwright.jit import compile_cuda as emulated
        except ImportError:
            raise ImportError("emulating CUDA C++ needs kernelwright: pip install kernelwright") from None
        return emulated(source, options)
    named, functions = built(source, options)
    return LoadedCubins(named, functions)


class LoadedCubins:
    """The kernels of a source, each an attribute, and loaded on each device when they are first called."""

    def __init__(self, named: str, functions: Mapping[str, Mapping[str, Any]]) -> None:
        self._named = named
        self._modules: dict[int, Any] = {}  # by device
        self._kernels = {
            name: CubinKernel(self, name, words["parameters"]) for name, words in functions.items()
        }
        self.__dict__.update(self._kernels)

    def get_function(self, name: str) -> "CubinKernel":
        """Return a kernel. Raises AttributeError if there is none of this name."""
        if name not in self._kernels:
            raise AttributeError(f"no kernel {name!r}; available: {', '.join(sorted(self._kernels))}")
        return self._kernels[name]

    def loaded(self, index: int) -> Any:
        """Return the driver's module on a device."""
        if index not in self._modules:
            major, minor = torch.cuda.get_device_capability(index)
            code = (FOLDER / f"{self._named}.sm_{major}{minor}.cubin").read_bytes()
            enter(index)
            module = ctypes.c_void_p()
            call("cuModuleLoadData", ctypes.byref(module), code)
            self._modules[index] = module
        return self._modules[index]


class CubinKernel:
    """Launcher of one kernel: `kernel((blocks,), (threads,), (x, y, n), shared_mem=0)`."""

    def __init__(
        self, module: LoadedCubins, name: str, forms: Sequence[tuple[str, int, Sequence[str]]]
    ) -> None:
        self._module, self._name = module, name
        self._functions: dict[int, Any] = {}  # by device
        self._allowed: dict[int, int] = {}  # bytes of dynamic shared memory, by device
        codes = ["Q" if pointers else _CODES[type_] for type_, pointers, _ in forms]
        layout = struct.Struct("".join(codes))  # with C's alignment
        self._buffer = ctypes.create_string_buffer(max(1, layout.size))
        ends = [struct.calcsize("".join(codes[: place + 1])) for place in range(len(codes))]
        first = ctypes.addressof(self._buffer)
        self._arguments = (ctypes.c_void_p * len(codes))(
            *(first + end - struct.calcsize(code) for end, code in zip(ends, codes, strict=True))
        )
        pack = functools.partial(layout.pack_into, self._buffer, 0)
        self._pack = checked(pack, forms, "get_device() == index", "index")
        self._lock = threading.Lock()  # of the buffer

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        """Launch the kernel on the current device.

        `grid`, `block`: one to three sizes; `args`: a tensor for each pointer, a number for each scalar.
        Raises TypeError for tensors that it would misread, RuntimeError for errors of the driver.
        """
        index = torch._C._cuda_getDevice()
        function = self._functions.get(index) or self._function(index)
        if shared_mem > self._allowed[index]:
            call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, shared_mem)
            self._allowed[index] = shared_mem
        sizes = (*_three(grid), *_three(block), shared_mem)
        stream = torch._C._cuda_getCurrentRawStream(index)
        with self._lock:
            self._pack(index, *args)
            error = driver().cuLaunchKernel(function, *sizes, stream, self._arguments, None)
            if error == _NO_CONTEXT:
                enter(index)
                error = driver().cuLaunchKernel(function, *sizes, stream, self._arguments, None)
        if error:
            raise RuntimeError(f"{self._name}: CUDA error: {_said(error)}")

    def _function(self, index: int) -> Any:
        """Return the kernel's handle on a device."""
        function, static = ctypes.c_void_p(), ctypes.c_int()
        call("cuModuleGetFunction", ctypes.byref(function), self._module.loaded(index), self._name.encode())
        call("cuFuncGetAttribute", ctypes.byref(static), _STATIC_SHARED, function)
        self._allowed[index] = _UNASKED_SHARED - static.value
        self._functions[index] = function
        return function


@functools.cache
def driver() -> Any:
    """Return the CUDA driver, initialized. Raises OSError without one."""
    found = ctypes.CDLL("libcuda.so.1")
    sizes = [ctypes.c_uint] * 7  # of the grid, of the block, of shared memory
    found.cuLaunchKernel.argtypes = [ctypes.c_void_p, *sizes, *[ctypes.c_void_p] * 3]
    found.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    if error := found.cuInit(0):
        raise OSError(f"the CUDA driver does not start: error {error}")
    return found


def call(name: str, *arguments: Any) -> None:
    """Call the driver. Raises RuntimeError with the driver's words."""
    if error := getattr(driver(), name)(*arguments):
        raise RuntimeError(f"{name}: CUDA error: {_said(error)}")


def enter(index: int) -> None:
    """Make the device's primary context, which is torch's, this thread's."""
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), index)
    call("cuCtxSetCurrent", context)


def _three(sizes: Sequence[int]) -> Sequence[int]:
    return (*sizes, 1, 1)[:3]


def _said(error: int) -> str:
    text = ctypes.c_char_p()
    driver().cuGetErrorString(error, ctypes.byref(text))
    return f"{(text.value or b'unknown').decode()} ({error})"
