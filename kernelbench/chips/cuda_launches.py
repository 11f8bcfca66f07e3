"""Launches of `compile_cuda`'s kernels, recorded instead of executed."""

from collections.abc import Sequence
from typing import Any

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.arguments import arguments
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import cubin, cuda
from kernelwright.kernelbench.jit.callplan import bind
from kernelwright.kernelbench.jit.cuda_options import CudaOptions
from kernelwright.kernelbench.jit.launch_sizes import dim
from kernelwright.kernelbench.jit.signature import Signature


class _Recorded:
    """The kernels of a source, built for a chip; without NVRTC they are not, which the notebook says."""

    def __init__(self, notebook: Notebook, source: str, options: CudaOptions, chip: str) -> None:
        self._notebook = notebook
        self._code: nvrtc.Code | None = None
        try:
            self._code = cubin.code(source, options.nvrtc, chip)
        except Unavailable as error:
            notebook.problem(str(error))

    def bind(self, signature: Signature) -> cuda.Launch:
        check = bind(signature, lambda *_: None, "cuda:0")
        name = signature.name

        def launch(grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared: int) -> None:
            check(*args)
            x, y, z = sizes = dim(name, "block", block)
            if self._code is not None:
                given = arguments(sizes, args)
                recorded = RecordedLaunch("NVRTC", name, dim(name, "grid", grid), x * y * z, shared)
                self._notebook.note(recorded, self._code.cubin, self._code.ptx, given)

        return launch


def note_cuda(notebook: Notebook, chip: str) -> None:
    """Make `compile_cuda` build kernels for the chip from now on, and record their launches."""
    cuda.recording = lambda source, options: _Recorded(notebook, source, options, chip)
