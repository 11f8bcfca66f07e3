"""CuPy's launches of CUDA C++, recorded instead of executed: a stub of the parts of CuPy they use."""

import contextlib
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch, three
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError

_SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
            "float64", "bool_")  # fmt: skip


def note_cupy(notebook: Notebook, chip: str) -> None:
    """Make `import cupy` build kernels for the chip by NVRTC from now on, and record their launches."""

    class RawModule:
        def __init__(self, code: str, *, options: Sequence[str] = (), **_: Any) -> None:
            self._code, self._options = code, options
            self._cubin = b""

        def get_function(self, name: str) -> "RawKernel":
            return RawKernel(self._code, name, self._options, module=self)

        def compile(self) -> None:
            try:
                self.cubin()
            except Unavailable as error:
                notebook.problem(str(error))

        def cubin(self) -> bytes:
            self._cubin = self._cubin or nvrtc.cubin(self._code, chip, self._options)
            return self._cubin

    class RawKernel:
        def __init__(
            self, code: str, name: str, options: Sequence[str] = (), module: RawModule | None = None, **_: Any
        ) -> None:
            self.name = name
            self._module = module or RawModule(code, options=options)

        def __call__(
            self,
            grid: Sequence[int],
            block: Sequence[int],
            args: Sequence[Any],
            *,
            shared_mem: int = 0,
            **_: Any,
        ) -> None:
            try:
                cubin = self._module.cubin()
            except BuildError as error:
                notebook.failure(f"{self.name} cannot be built: {error}")
                return
            except Unavailable as error:
                notebook.problem(f"{self.name} cannot be built: {error}")
                return
            x, y, z = three(block)
            notebook.note(RecordedLaunch("NVRTC", self.name, three(grid), x * y * z, shared_mem), cubin)

    cupy: Any = ModuleType("cupy")
    cupy.RawKernel, cupy.RawModule = RawKernel, RawModule
    cupy.asarray = cupy.from_dlpack = cupy.ascontiguousarray = lambda tensor: tensor
    for name in _SCALARS:
        setattr(cupy, name, getattr(np, name))
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.ExternalStream = cupy.cuda.Device = lambda *_: contextlib.nullcontext()
    cupy.cuda.compiler = SimpleNamespace(CompileException=BuildError)
    sys.modules |= {"cupy": cupy, "cupy.cuda": cupy.cuda}
