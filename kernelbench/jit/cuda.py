"""`compile_cuda`: CUDA C++ with extern "C" kernels -> functions that launch them, on a GPU or emulated.

On a GPU NVRTC builds it, through CuPy's RawModule, and launches go to torch's current stream. Without one the
same source runs on the CPU (`kernelbench.emulate`), which checks every access; tensors are torch's, on the
device that kernels run on.
"""

import ctypes
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.errors import ArgumentError, BuildError
from kernelwright.kernelbench.jit.launch_mode import on_gpu
from kernelwright.kernelbench.jit.nvrtc_source import for_nvrtc
from kernelwright.kernelbench.jit.signature import Parameter, Signature, expanded, parse

if TYPE_CHECKING:
    from kernelwright.kernelbench.emulate.launching import Emulated
    from kernelwright.kernelbench.jit.arguments import Converter

_MOST_SHARED = 232448  # bytes that a block can have at most, on sm_90
_KERNEL = re.compile(r"\b__global__\b(?P<before>[^;{}]*?)\b(?P<name>[A-Za-z_]\w*)\s*\(")
_DEFINE = re.compile(r"-D ?[A-Za-z_]\w*(?:=[\w.+\-*/() ]*)?|--?D[A-Za-z_]\w*(?:=[\w.+\-]*)?")
_IGNORED = re.compile(r"--?(?:std=c\+\+(?:11|14|17|20)|use_fast_math|fmad=(?:true|false)|O[0-3]|lineinfo)")
_STATIC_SHARED = 49152  # bytes of dynamic shared memory that need no asking
Dims = Sequence[int]


@dataclass(frozen=True)
class _LaunchRequest:
    signature: Signature
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    given: Sequence[Any]  # the arguments
    values: Sequence[Any]  # what their converters made of them
    shared: int  # bytes of dynamic shared memory

    @property
    def arguments(self) -> Iterator[tuple[Parameter, Any, Any]]:
        """Iterator over each argument's parameter, the argument and its converted value."""
        return zip(self.signature.parameters, self.given, self.values, strict=True)


class _Backend(Protocol):
    """Backend that runs the kernels of one source."""

    @property
    def device(self) -> str: ...

    def launch(self, wanted: _LaunchRequest) -> None: ...


class CudaKernel:
    """Launcher of one kernel: `kernel((blocks,), (threads,), (x, y, n), shared_mem=0)`."""

    def __init__(self, signature: Signature, backend: _Backend) -> None:
        self.signature, self._backend = signature, backend

    def __call__(self, grid: Dims, block: Dims, args: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Launch the kernel.

        `grid`, `block`: one to three sizes; `args`: a tensor for each pointer, a number for each scalar.
        Raises ArgumentError; without a GPU KernelFault for an illegal operation of the kernel.
        """
        signature = self.signature
        if signature.problem:
            raise ArgumentError(f"{signature}: {signature.problem}")
        args = tuple(args)
        if len(args) != len(signature.parameters):
            raise ArgumentError(f"{signature} takes {len(signature.parameters)} arguments, got {len(args)}")
        values = [convert(value) for convert, value in zip(self._converters, args, strict=True)]
        sizes = (_dims(signature.name, "grid", grid), _dims(signature.name, "block", block))
        self._backend.launch(_LaunchRequest(signature, *sizes, args, values, shared_mem))

    @cached_property
    def _converters(self) -> "list[Converter]":
        from kernelwright.kernelbench.jit.arguments import converter  # brings torch along

        device = self._backend.device
        return [converter(self.signature.name, p, device) for p in self.signature.parameters]

    def __repr__(self) -> str:
        return f"CudaKernel({self.signature})"


class CudaModule:
    """The kernels of a source, as CuPy's RawModule has them."""

    def __init__(self, signatures: dict[str, Signature], backend: _Backend) -> None:
        self._kernels = {name: CudaKernel(signature, backend) for name, signature in signatures.items()}

    def get_function(self, name: str) -> CudaKernel:
        """Return an extern "C" kernel. Raises AttributeError if there is none of this name."""
        if name not in self._kernels:
            names = ", ".join(sorted(self._kernels))
            raise AttributeError(f'no extern "C" __global__ function {name!r}; available: {names}')
        return self._kernels[name]

    def __getattr__(self, name: str) -> CudaKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get_function(name)

    def __repr__(self) -> str:
        return f"CudaModule({', '.join(sorted(self._kernels))})"


def compile_cuda(source: str, options: Sequence[str] = (), *, timeout_s: float = 120.0) -> CudaModule:
    """Build CUDA C++, unless that was done before. `options`: of NVRTC; -D and a few more.

    Raises BuildError, emulate.translation.Unsupported for features that the emulator lacks, and
    MissingPrerequisite (on a GPU without CuPy, elsewhere without g++).
    """
    if not isinstance(source, str):
        raise BuildError(f"source must be a string of CUDA C++, got {type(source).__name__}")
    for option in options:
        if not (_DEFINE.fullmatch(option) or _IGNORED.fullmatch(option)):
            raise BuildError(
                f"unsupported option {option!r}; use -D, -std, --use_fast_math, -fmad, -lineinfo"
            )
    defines = tuple(option for option in options if _DEFINE.fullmatch(option))
    if on_gpu():
        return CudaModule(kernels(source, defines), _Cupy(source, tuple(options)))
    from kernelwright.kernelbench.emulate import history  # which needs this package
    from kernelwright.kernelbench.emulate.building import build
    from kernelwright.kernelbench.emulate.launching import Emulated

    with history.watched():
        signatures = kernels(source, defines)
        built = build(source, tuple(signatures), defines, BuildCache(), timeout_s)
        return CudaModule(signatures, _Emulator(Emulated(built)))


def kernels(source: str, options: Sequence[str] = ()) -> dict[str, Signature]:
    """Return the signatures of extern "C" kernels; `options`: -D. Raises BuildError if there are none."""
    named = (option.partition("D")[2].strip().partition("=") for option in options)
    defines = {name: value if equals else "1" for name, equals, value in named}
    text = re.sub(r"__launch_bounds__\s*\([^)]*\)", " ", expanded(source, defines))
    names = {found["name"] for found in _KERNEL.finditer(text)}
    found = {name: signature for name, signature in parse(source, defines).items() if name in names}
    if not found:
        raise BuildError('the source has no extern "C" __global__ function to launch')
    return found


def _dims(kernel: str, of: str, given: Dims) -> tuple[int, int, int]:
    try:
        sizes = [int(size) for size in given]
    except (TypeError, ValueError):
        sizes = []
    if not 1 <= len(sizes) <= 3:
        raise ArgumentError(f"{kernel}: {of} must be a tuple of one to three numbers, got {given!r:.60}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


class _Emulator:
    def __init__(self, emulated: "Emulated") -> None:
        self._emulated = emulated

    @property
    def device(self) -> str:
        """Device that tensors report: a GPU if torch is emulated as on one."""
        import torch

        return torch.empty(0).device.type

    def launch(self, wanted: _LaunchRequest) -> None:
        from kernelwright.kernelbench.emulate.launching import EmulatedMemory
        from kernelwright.kernelbench.emulate.memory import written
        from kernelwright.kernelbench.jit.callplan import C_TYPES

        arguments, memory = [], []
        for parameter, tensor, value in wanted.arguments:
            if parameter.pointers:
                size = tensor.numel() * tensor.element_size()
                memory.append(EmulatedMemory(parameter.name, value, size, written(tensor)))
                arguments.append(ctypes.c_void_p(value))
            else:
                arguments.append(C_TYPES[parameter.type](value))
        self._emulated.launch(
            wanted.signature.name, wanted.grid, wanted.block, arguments, memory, wanted.shared
        )


class _Cupy:
    device = "cuda"

    def __init__(self, source: str, options: tuple[str, ...]) -> None:
        try:
            cupy: Any = importlib.import_module("cupy")
        except ImportError:
            fix = "pip install cupy-cuda12x or cupy-cuda13x, matching your driver"
            raise MissingPrerequisite("launching CUDA kernels needs CuPy", fix) from None
        self._cupy = cupy
        self._module = cupy.RawModule(code=for_nvrtc(source), options=options)
        try:
            self._module.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise BuildError("NVRTC failed", str(error)) from None

    def launch(self, wanted: _LaunchRequest) -> None:
        import numpy as np
        import torch

        function = self._module.get_function(wanted.signature.name)
        if wanted.shared > _STATIC_SHARED:
            function.max_dynamic_shared_size_bytes = min(wanted.shared, _MOST_SHARED)
        arguments = [
            np.uint64(value) if p.pointers else np.dtype(_numpy(p.type)).type(value)
            for p, _, value in wanted.arguments
        ]
        stream = torch.cuda.current_stream()
        with (
            self._cupy.cuda.Device(stream.device.index),
            self._cupy.cuda.ExternalStream(stream.cuda_stream, stream.device.index),
        ):
            function(wanted.grid, wanted.block, arguments, shared_mem=wanted.shared)


def _numpy(type_: str) -> str:
    return {"float": "float32", "double": "float64"}.get(type_, type_)
