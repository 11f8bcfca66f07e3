"""Cubins of CUDA C++: built by NVRTC for the GPU at hand, kept by content, and loaded without NVRTC."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import MissingPrerequisite, Unavailable
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.nvrtc_source import for_nvrtc

_NAME = "kernel.cubin"
FIX = "pip install 'kernelwright[cuda]'"


def build(source: str, options: Sequence[str], chip: str) -> bytes:
    """Build `source`, written for nvcc; return the machine code. Raises as `code`."""
    return code(source, options, chip).cubin


def code(source: str, options: Sequence[str], chip: str) -> nvrtc.Code:
    """Build `source`, written for nvcc, with the instructions of the chip's own architecture.

    `options`: of NVRTC; `chip`: such as "sm_90", built for as sm_90a. Raises BuildError, and Unavailable
    without NVRTC.
    """
    try:
        return nvrtc.code(for_nvrtc(source), nvrtc.accelerated(chip), options)
    except BuildError as error:
        raise BuildError("NVRTC failed", str(error)) from None


def kept(source: str, options: Sequence[str], chip: str, cache: BuildCache, timeout_s: float) -> Path:
    """Return the cubin in the cache, which it is built into if missing; another's build is waited for.

    Raises BuildError, and MissingPrerequisite without an NVRTC that builds for the chip.
    """

    def make(workspace: Path) -> None:
        if not nvrtc.supports(chip):
            raise MissingPrerequisite(
                f"NVRTC {nvrtc.version()} does not build for {chip}", "pip install -U nvidia-cuda-nvrtc"
            )
        (workspace / _NAME).write_bytes(build(source, options, chip))

    try:
        key = content_key("cubin", for_nvrtc(source), "\n".join(options), chip, nvrtc.identity())
        return cache.get_or_build(key, make, wait_s=timeout_s + 10) / _NAME
    except Unavailable as error:
        raise MissingPrerequisite(f"CUDA C++ cannot be built: {error}", FIX) from None
