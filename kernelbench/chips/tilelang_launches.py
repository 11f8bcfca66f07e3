"""TileLang's launches, recorded instead of executed: it needs no GPU to write CUDA C++, which NVRTC builds.

Sizes that are known when it is called only are those of the call's tensors. What an autotuner would time is
not called.
"""

import importlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch, last_line, three
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit.errors import BuildError

_STANDARD = "#include <tl_templates/cuda/nvrtc_std.h>\n"  # what NVRTC lacks of the standard library


def note_tilelang(notebook: Notebook, chip: str) -> None:
    """Record launches from now on; TileLang is imported, if it is installed."""
    if find_spec("tilelang") is None:
        return
    target = {"kind": "cuda", "arch": nvrtc.accelerated(chip)}
    os.environ |= {"TILELANG_DEFAULT_TARGET": json.dumps(target), "TILELANG_PRINT_ON_COMPILATION": "0"}
    tilelang: Any = importlib.import_module("tilelang")
    jit: Any = importlib.import_module("tilelang.jit")

    def compiled(func: Any, out_idx: Any = None, *_: Any, pass_configs: Any = None, **__: Any) -> Any:
        made = tilelang.tvm.target.Target(target)
        with tilelang.tvm.transform.PassContext(opt_level=3, config=pass_configs or {}), made:
            artifact = tilelang.lower(func, target=made)
        count = len(artifact.params)
        numbers = [out_idx] if isinstance(out_idx, int) else out_idx or []
        outputs = tuple(sorted(number % count for number in numbers))
        return _RecordedKernel(notebook, nvrtc.accelerated(chip), artifact, outputs)

    jit.cached = compiled


@dataclass
class _RecordedKernel:
    """A compiled TileLang function. `outputs`: places of the parameters that a call returns."""

    notebook: Notebook
    chip: str
    artifact: Any
    outputs: tuple[int, ...]
    _cubin: bytes | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Record the launches of a call; return new tensors for its outputs."""
        parameters = list(self.artifact.params)
        places = [place for place in range(len(parameters)) if place not in self.outputs]
        if len(places) != len(arguments):
            raise TypeError(f"{len(places)} arguments are needed, and {len(arguments)} are given")
        sizes: dict[str, int] = {}
        for place, given in zip(places, arguments, strict=True):
            for dimension, size in zip(parameters[place].shape, getattr(given, "shape", ()), strict=False):
                sizes.setdefault(str(dimension), int(size))
        self._note()
        device = next((each.device for each in arguments if isinstance(each, torch.Tensor)), None)
        made = [
            torch.zeros(
                [each if isinstance(each, int) else sizes[str(each)] for each in parameters[place].shape],
                dtype=parameters[place].torch_dtype(),
                device=device,
            )
            for place in self.outputs
        ]
        return made[0] if len(made) == 1 else made or None

    def get_kernel_source(self) -> str:
        return str(self.artifact.kernel_source)

    def _note(self) -> None:
        if self._cubin is None:
            try:
                self._cubin = nvrtc.cubin(_STANDARD + self.get_kernel_source(), self.chip, _options())
            except Unavailable as error:
                self.notebook.problem(str(error))
                return
            except BuildError as error:
                self.notebook.failure(f"NVRTC does not build what TileLang wrote: {last_line(error)}")
                return
        for name, function in self.artifact.device_mod.functions.items():
            extents = {str(tag): extent for tag, extent in function.attrs["thread_extent"].items()}
            x, y, z = _sizes(extents, "threadIdx")
            shared = function.attrs.get("dyn_shared_memory_buf", 0)
            launch = RecordedLaunch(
                "NVRTC", name.name_hint, _sizes(extents, "blockIdx"), x * y * z, int(shared)
            )
            self.notebook.note(launch, self._cubin)


def _sizes(extents: dict[str, Any], what: str) -> tuple[int, int, int]:
    """Return a grid or a block; zeros where one is not known before the call."""
    found = [extents.get(f"{what}.{axis}", 1) for axis in "xyz"]
    try:
        return three([int(each) for each in found])
    except TypeError:  # an expression
        return 0, 0, 0


def _options() -> list[str]:
    """Return NVRTC's options for TileLang's sources. Raises Unavailable without their headers."""
    root = Path(importlib.import_module("tilelang").__file__ or "").parent
    folders = [root / "src", root / "3rdparty" / "cutlass" / "include"]
    cccl = next((path for path in _cccl() if (path / "cuda" / "std" / "cassert").is_file()), None)
    if cccl is None:
        raise Unavailable("TileLang's headers need those of CCCL; pip install nvidia-cuda-cccl")
    folders += [cccl.parent, cccl]
    return [
        *(f"--include-path={each}" for each in folders),
        "-D__CUDACC_VER_MAJOR__=13",
        "-default-device",
        "-w",
    ]


def _cccl() -> Iterable[Path]:
    yield from (folder / "cccl" for folder in nvrtc.headers())
    nvidia = find_spec("nvidia")
    for place in nvidia.submodule_search_locations or () if nvidia else ():
        yield Path(place) / "cu13" / "include" / "cccl"
