"""Stand-in for CuPy where there is no GPU: the parts of it that launch CUDA C++ on torch's tensors.

    kernel = cupy.RawKernel(SOURCE, "scale")
    kernel((blocks,), (256,), (cupy.from_dlpack(x), y.data_ptr(), cupy.int32(n)))

An array is torch's tensor itself; CuPy need not be installed.
"""

import contextlib
import ctypes
import sys
from collections.abc import Sequence
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import dlpack

from kernelwright.kernelbench.emulate import torch_on_gpu
from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.jit import BuildError, compile_cuda, cuda_options
from kernelwright.kernelbench.jit.callplan import C_TYPES
from kernelwright.kernelbench.jit.cuda import CudaModule
from kernelwright.kernelbench.jit.errors import ArgumentError
from kernelwright.kernelbench.jit.signature import Parameter

_SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
            "float64", "bool_")  # fmt: skip


class CupyBackend(Protocol):
    """Builder and launcher of one source's kernels."""

    def compile(self) -> None:
        """Build the source, unless that was done. Raises BuildError."""
        ...

    def launch(self, name: str, grid: Sequence[int], block: Sequence[int], args: Any, shared: int) -> None:
        """Launch a kernel. Raises BuildError, ArgumentError."""
        ...


class CupyMaker(Protocol):
    """Maker of the backend of a source."""

    def __call__(self, code: str, options: Sequence[str]) -> CupyBackend: ...


def stand_in(backend: CupyMaker) -> None:
    """Make `import cupy` give the stand-in from now on, whose sources are the `backend`'s."""

    class RawModule:
        def __init__(self, code: str, *, options: Sequence[str] = (), **others: Any) -> None:
            if others.get("name_expressions"):
                raise Unsupported("an instance of a template that CuPy names (name_expressions)")
            self._backend = backend(code, options)
            self.compile = self._backend.compile

        def get_function(self, name: str) -> "RawKernel":
            return RawKernel("", name, module=self)

    class RawKernel:
        def __init__(
            self, code: str, name: str, options: Sequence[str] = (), module: RawModule | None = None, **_: Any
        ) -> None:
            self.name = name
            self._backend = module._backend if module is not None else backend(code, options)
            self.compile = self._backend.compile

        def __call__(
            self, grid: Sequence[int], block: Sequence[int], args: Any, *, shared_mem: int = 0, **_: Any
        ) -> None:
            self._backend.launch(self.name, grid, block, args, shared_mem)

    cupy: Any = ModuleType("cupy")
    cupy.RawKernel, cupy.RawModule = RawKernel, RawModule
    cupy.asarray = cupy.ascontiguousarray = cupy.from_dlpack = cupy.fromDlpack = _tensor
    for name in _SCALARS:
        setattr(cupy, name, getattr(np, name))
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.ExternalStream = cupy.cuda.Device = cupy.cuda.Stream = lambda *_: contextlib.nullcontext()
    cupy.cuda.compiler = SimpleNamespace(CompileException=BuildError)
    for module in (cupy, cupy.cuda):
        module.__getattr__ = _lacking(module.__name__)
    sys.modules |= {"cupy": cupy, "cupy.cuda": cupy.cuda}


def emulate_cupy() -> None:
    """Make `import cupy` give the stand-in from now on, with kernels emulated."""
    stand_in(_Emulated)
    torch_on_gpu.SAID[torch.Tensor.data_ptr] = _Address


class _Emulated:
    def __init__(self, code: str, options: Sequence[str]) -> None:
        self._code, self._options = code, [option for option in options if _known(option)]

    @cached_property
    def _module(self) -> CudaModule:
        return compile_cuda(self._code, self._options)

    def compile(self) -> None:
        assert self._module

    def launch(self, name: str, grid: Sequence[int], block: Sequence[int], args: Any, shared: int) -> None:
        kernel = self._module.get_function(name)
        parameters = kernel.signature.parameters
        if len(args) != len(parameters):
            raise ArgumentError(f"{name} takes {len(parameters)} arguments, got {len(args)}")
        given = [_argument(name, parameter, each) for parameter, each in zip(parameters, args, strict=True)]
        kernel(grid, block, given, shared_mem=shared)


class _Address(int):
    """Address of a tensor's memory, which knows the tensor."""

    tensor: torch.Tensor

    def __new__(cls, tensor: torch.Tensor) -> "_Address":
        with torch._C.DisableTorchFunction():
            made = super().__new__(cls, tensor.data_ptr())
        made.tensor = tensor
        return made


def _argument(kernel: str, parameter: Parameter, given: Any) -> Any:
    """Return an argument as `compile_cuda` takes it.

    A number is its bytes, as in CuPy: a Python float is a double, whatever the kernel takes it for.
    """
    if parameter.pointers:
        return given.tensor if isinstance(given, _Address) else given
    if isinstance(given, torch.Tensor):
        raise ArgumentError(f"{kernel}: {parameter.name} is a number, got a tensor")
    raw, type_ = np.asarray(given).tobytes(), C_TYPES[parameter.type]
    if len(raw) < (size := ctypes.sizeof(type_)):
        raise ArgumentError(f"{kernel}: {parameter.text} has {size} bytes, got {type(given).__name__}")
    return type_.from_buffer_copy(raw[:size]).value


def _tensor(given: Any, *_: Any, **__: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return given
    if type(given).__name__ == "PyCapsule":
        return dlpack.from_dlpack(given)
    raise Unsupported(f"a CuPy array of a {type(given).__name__}")


def _known(option: str) -> bool:
    try:
        cuda_options.check([option])
    except BuildError:
        return False
    return True


def _lacking(module: str) -> Any:
    def lacking(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"{module}.{name}")

    return lacking
