"""`compile_cuda`: CUDA C++ with extern "C" kernels -> functions that launch them, on a GPU or emulated.

On a GPU NVRTC builds the source, and the driver launches kernels on torch's current stream (`jit.device`).
Without one the same source runs on the CPU (`kernelbench.emulate`), which checks every access; tensors are
torch's, on the device that kernels run on.
"""

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from kernelwright.kernelbench.jit import cuda_options
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.cuda_options import CudaOptions
from kernelwright.kernelbench.jit.errors import ArgumentError, BuildError
from kernelwright.kernelbench.jit.launch_mode import on_gpu
from kernelwright.kernelbench.jit.launch_sizes import dim
from kernelwright.kernelbench.jit.signature import ATTRIBUTE, Signature, expanded, parse

if TYPE_CHECKING:
    from kernelwright.kernelbench.emulate.launching import Emulated

_KERNEL = re.compile(r"\b__global__\b(?P<before>[^;{}]*?)\b(?P<name>[A-Za-z_]\w*)\s*\(")
Dims = Sequence[int]
Launch = Callable[[Dims, Dims, Sequence[Any], int], None]  # of a grid, a block, arguments and shared bytes


class LaunchBackend(Protocol):
    """The kernels of a source where they run."""

    def bind(self, signature: Signature) -> Launch:
        """Return the launcher of a kernel."""
        ...


# In place of builds for the GPU: what records launches of chips that are not here.
recording: Callable[[str, CudaOptions], LaunchBackend] | None = None


class CudaKernel:
    """Launcher of one kernel: `kernel((blocks,), (threads,), (x, y, n), shared_mem=0)`."""

    def __init__(self, signature: Signature, launch: Launch) -> None:
        self.signature, self._launch = signature, launch

    def __call__(self, grid: Dims, block: Dims, args: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Launch the kernel.

        `grid`, `block`: one to three sizes; `args`: a tensor for each pointer, a number for each scalar.
        Raises ArgumentError; on a GPU LaunchError, and KernelFault for an illegal operation without one.
        """
        self._launch(grid, block, args, shared_mem)

    def __repr__(self) -> str:
        return f"CudaKernel({self.signature})"


class CudaModule:
    """The kernels of a source, each an attribute."""

    def __init__(self, signatures: Mapping[str, Signature], backend: LaunchBackend) -> None:
        self._kernels = {name: CudaKernel(s, _launch(s, backend)) for name, s in signatures.items()}
        self.__dict__.update(self._kernels)

    def get_function(self, name: str) -> CudaKernel:
        """Return an extern "C" kernel. Raises AttributeError if there is none of this name."""
        if name not in self._kernels:
            names = ", ".join(sorted(self._kernels))
            raise AttributeError(f'no extern "C" __global__ function {name!r}; available: {names}')
        return self._kernels[name]

    def __getattr__(self, name: str) -> CudaKernel:
        if name.startswith("__") or "_kernels" not in self.__dict__:
            raise AttributeError(name)
        return self.get_function(name)

    def __repr__(self) -> str:
        return f"CudaModule({', '.join(sorted(self._kernels))})"


def compile_cuda(source: str, options: Sequence[str] = (), *, timeout_s: float = 120.0) -> CudaModule:
    """Build CUDA C++, unless that was done before. `options`: of NVRTC, those that `cuda_options` lists.

    Raises BuildError, emulate.translation.Unsupported for features that the emulator lacks, LaunchError for
    what the GPU's driver does not load, and MissingPrerequisite (on a GPU without NVRTC or cuda-bindings,
    elsewhere without g++).
    """
    if not isinstance(source, str):
        raise BuildError(f"source must be a string of CUDA C++, got {type(source).__name__}")
    chosen = cuda_options.check(options)
    if on_gpu():
        from kernelwright.kernelbench.jit.device import on_device  # brings torch along

        signatures = kernels(source, chosen.defines)
        backend = recording(source, chosen) if recording else on_device(source, chosen, timeout_s)
        return CudaModule(signatures, backend)
    from kernelwright.kernelbench.emulate import history  # which needs this package
    from kernelwright.kernelbench.emulate.building import build
    from kernelwright.kernelbench.emulate.launching import Emulated

    with history.watched():
        signatures = kernels(source, chosen.defines)
        built = build(source, tuple(signatures), chosen.emulation, BuildCache(), timeout_s)
        return CudaModule(signatures, _Emulator(Emulated(built)))


def kernels(source: str, defines: Mapping[str, str]) -> dict[str, Signature]:
    """Return the signatures of extern "C" kernels. Raises BuildError if there are none."""
    text = re.sub(ATTRIBUTE, " ", expanded(source, defines), flags=re.DOTALL)
    names = {found["name"] for found in _KERNEL.finditer(text)}
    found = {name: signature for name, signature in parse(source, defines).items() if name in names}
    if not found:
        raise BuildError('the source has no extern "C" __global__ function to launch')
    return {name: _without_tables(signature) for name, signature in found.items()}


def _without_tables(signature: Signature) -> Signature:
    """Mark pointers to pointers as a problem: their array would lie in the host's memory."""
    tables = [p for p in signature.parameters if p.pointers == 2]
    if signature.problem or not tables:
        return signature
    problem = f"parameter {tables[0].name!r} is a {tables[0].text}; pass an int64 tensor of data_ptr() values"
    return replace(signature, problem=problem)


def _launch(signature: Signature, backend: LaunchBackend) -> Launch:
    if not signature.problem:
        return backend.bind(signature)

    def refuse(*_: Any) -> None:
        raise ArgumentError(f"{signature}: {signature.problem}")

    return refuse


class _Emulator:
    def __init__(self, emulated: "Emulated") -> None:
        self._emulated = emulated

    def bind(self, signature: Signature) -> Launch:
        from kernelwright.kernelbench.emulate.launching import EmulatedMemory
        from kernelwright.kernelbench.emulate.memory import written
        from kernelwright.kernelbench.jit import callplan

        def launch(grid: Dims, block: Dims, args: Sequence[Any], shared: int) -> None:
            import torch

            args = tuple(args)
            device = str(torch.empty(0).device)  # a GPU if torch is emulated as on one
            values = callplan.bind(signature, lambda *values: values, device)(*args)
            arguments, memory = [], []
            for parameter, tensor, value in zip(signature.parameters, args, values, strict=True):
                if parameter.pointers:
                    size = tensor.numel() * tensor.element_size()
                    memory.append(EmulatedMemory(parameter.name, value, size, written(tensor)))
                    arguments.append(ctypes.c_void_p(value))
                else:
                    arguments.append(callplan.C_TYPES[parameter.type](value))
            sizes = dim(signature.name, "grid", grid), dim(signature.name, "block", block)
            self._emulated.launch(signature.name, *sizes, arguments, memory, shared)

        return launch
