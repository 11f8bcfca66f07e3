"""Launches of `load_inline`'s CUDA sources, recorded instead of executed.

The host code runs, as it does for the emulator, and determines which kernels it launches; these are built by
NVRTC.
"""

import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.device_code import device_code
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch
from kernelwright.kernelbench.chips.ptx.tracing import LaunchArguments
from kernelwright.kernelbench.emulate.findings import Dim
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError, inline
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.nvrtc_source import for_nvrtc


def note_inline(notebook: Notebook, chip: str) -> None:
    """Build extensions with CUDA sources in this way from now on, for the chip."""

    def noted(given: Mapping[str, Any], cache: BuildCache) -> ModuleType:
        source = for_nvrtc(device_code("\n".join(inline.sources(given["cuda_sources"]))))
        found: dict[str, nvrtc.Code] = {}

        def launched(
            kernel: str, grid: Dim, block: Dim, shared: int, values: Sequence[int], memory: Mapping[int, int]
        ) -> None:
            expression = re.sub(r"\bscalar_t\b", "float", kernel)
            try:
                if expression not in found:
                    found[expression] = nvrtc.code(source, chip, kernels=(expression,))
            except (BuildError, Unavailable) as error:
                # What is left of the source may lack something that the host code around it had.
                notebook.problem(f"{kernel} cannot be built for {chip}: {error}")
                return
            built = found[expression]
            threads = block[0] * block[1] * block[2]
            recorded = RecordedLaunch("NVRTC", built.names[0], grid, threads, shared)
            given = LaunchArguments(block, tuple(values), tuple(memory.items()))
            notebook.note(recorded, built.cubin, built.ptx, given)

        return inline.emulated(given, cache, launched)

    inline.noting = noted
