"""CUDA C++ built for a chip that need not be present, by NVRTC: tens of milliseconds, and no toolkit.

https://docs.nvidia.com/cuda/nvrtc
"""

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit.errors import BuildError

_ACCELERATED = 90  # compute capability from which on architectures have instructions of their own
_FIX = "pip install 'kernelwright[cuda]', for nvidia-cuda-nvrtc and cuda-bindings"


@dataclass(frozen=True)
class Code:
    """Code of a source. `names`: of the kernels that were asked for, as they stand in it."""

    cubin: bytes
    ptx: str
    names: tuple[str, ...] = ()


def version() -> str:
    """Return NVRTC's version, such as "13.0". Raises Unavailable if it is not installed."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def identity() -> str:
    """Return what builds depend on besides source, options and chip: NVRTC, and CUDA's headers.

    NVRTC is not loaded for it where it is installed as a package. Raises Unavailable if it is not installed.
    """
    try:
        found = importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        found = version()
    for folder in headers():
        status = (folder / "cuda_fp16.h").stat()
        found += f"\n{folder} {status.st_size} {status.st_mtime_ns}"
    return found


def accelerated(chip: str) -> str:
    """Return the variant of a chip with its architecture's own instructions: "sm_90a", with wgmma and TMA.

    Code for it runs on no other architecture. A chip that has none is returned as it is.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#feature-set-compiler-targets
    """
    return f"{chip}a" if int(chip.removeprefix("sm_")) >= _ACCELERATED else chip


def supports(chip: str) -> bool:
    """Return True if NVRTC builds for this chip. Raises Unavailable if it is not installed."""
    _, architectures = _nvrtc().nvrtcGetSupportedArchs()
    return int(chip.removeprefix("sm_").rstrip("af")) in architectures


def cubin(source: str, chip: str, options: Sequence[str] = ()) -> bytes:
    """Build `source` for `chip`, such as "sm_90"; return the machine code. Raises as `code`."""
    return code(source, chip, options).cubin


def code(source: str, chip: str, options: Sequence[str] = (), kernels: Sequence[str] = ()) -> Code:
    """Build `source` for `chip`. NVRTC reads included files: sandbox it.

    `options`: of NVRTC, such as "--use_fast_math"; `kernels`: instances of templates, "scale<float, 256>".
    Raises BuildError with NVRTC's log, Unavailable if it is not installed.
    """
    nvrtc = _nvrtc()
    program = _checked(*nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        for expression in kernels:
            _checked(*nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        given = (f"--gpu-architecture={chip}", *(f"--include-path={path}" for path in headers()), *options)
        words = [word.encode() for word in given]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            said = _content(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise BuildError(said.rstrip(b"\0").decode(errors="replace").strip() or str(status))
        cubin = _content(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        ptx = _content(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()
        named = [_checked(*nvrtc.nvrtcGetLoweredName(program, each.encode())) for each in kernels]
        return Code(cubin, ptx, tuple(name.decode() for name in named))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def headers() -> list[Path]:
    """Return the folder of CUDA's headers: the toolkit's, its packages', or Triton's."""
    found = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    nvidia, triton = find_spec("nvidia"), find_spec("triton")
    for place in nvidia.submodule_search_locations or () if nvidia else ():
        found += [Path(place) / "cu13" / "include", Path(place) / "cuda_runtime" / "include"]
    for place in triton.submodule_search_locations or () if triton else ():
        found.append(Path(place) / "backends" / "nvidia" / "include")
    return [path for path in found if (path / "cuda_fp16.h").is_file()][:1]


def _nvrtc() -> Any:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()  # which loads it
    except (ImportError, RuntimeError) as error:
        raise Unavailable(f"NVRTC is not installed ({type(error).__name__}); {_FIX}") from None
    return nvrtc


def _content(program: Any, size: Callable[..., Any], get: Callable[..., Any]) -> bytes:
    found = bytes(_checked(*size(program)))
    _checked(*get(program, found))  # which writes into it
    return found


def _checked(status: Any, value: Any = None) -> Any:
    assert not int(status), status
    return value
