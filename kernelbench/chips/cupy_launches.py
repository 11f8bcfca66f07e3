"""CuPy's launches of CUDA C++, recorded instead of executed."""

from collections.abc import Sequence
from typing import Any

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.arguments import arguments
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch, three
from kernelwright.kernelbench.emulate.cupy_stand_in import stand_in
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError


def note_cupy(notebook: Notebook, chip: str) -> None:
    """Make `import cupy` build kernels for the chip by NVRTC from now on, and record their launches."""

    class Recorded:
        def __init__(self, code: str, options: Sequence[str]) -> None:
            self._source, self._options = code, options
            self._code: nvrtc.Code | None = None

        def compile(self) -> None:
            try:
                self._built()
            except Unavailable as error:
                notebook.problem(str(error))

        def launch(
            self, name: str, grid: Sequence[int], block: Sequence[int], args: Any, shared: int
        ) -> None:
            try:
                built = self._built()
            except BuildError as error:
                notebook.failure(f"{name} cannot be built: {error}")
                return
            except Unavailable as error:
                notebook.problem(f"{name} cannot be built: {error}")
                return
            x, y, z = three(block)
            recorded = RecordedLaunch("NVRTC", name, three(grid), x * y * z, shared)
            notebook.note(recorded, built.cubin, built.ptx, arguments((x, y, z), args))

        def _built(self) -> nvrtc.Code:
            self._code = self._code or nvrtc.code(self._source, chip, self._options)
            return self._code

    stand_in(Recorded)
