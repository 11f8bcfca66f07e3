"""Triton's launches, recorded instead of executed.

Triton is given a GPU that is not there and only compiles, by its own rules of specialization.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from kernelwright.kernelbench.chips.arguments import arguments
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch, last_line, three
from kernelwright.kernelbench.chips.occupancy import WARP
from kernelwright.kernelbench.emulate.triton_driver import NoGpu

_BEFORE = 6  # arguments of `CompiledKernel.run` before the kernel's: stream, function, metadata, hooks


def note_triton(notebook: Notebook, capability: int) -> None:
    """Make Triton build for this chip from now on, 90 for sm_90, and record launches."""
    os.environ.pop("TRITON_INTERPRET", None)
    # Those imported under it hold interpreted functions; the native part can be imported only once.
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        if not name.startswith("triton._C"):
            del sys.modules[name]
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", capability, WARP)
    importlib.import_module("triton.runtime.driver").driver.set_active(NoGpu(target))
    compiler: Any = importlib.import_module("triton.compiler")
    functions: Any = importlib.import_module("triton.runtime.jit").JITFunction
    tuners: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    run, tune = functions.run, tuners.run
    configurations = 0  # of the autotuner that is at work

    def note(kernel: Any, grid: Any, args: Sequence[Any]) -> None:
        launch = RecordedLaunch(
            builder="Triton",
            name=kernel.metadata.name,
            grid=three(grid),
            threads=kernel.metadata.num_warps * WARP,
            shared_bytes=kernel.metadata.shared,
            configurations=configurations,
        )
        given = arguments((launch.threads, 1, 1), _passed(kernel, args))
        notebook.note(launch, kernel.asm["cubin"], kernel.asm["ptx"], given)

    def noted(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        try:
            kernel = run(function, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:  # noqa: BLE001 - what Triton says of a kernel that it cannot build
            notebook.failure(f"{function.__name__} cannot be built: {last_line(error)}")
            return None
        if not warmup:
            given = {name: kwargs[name] for name in function.signature.parameters if name in kwargs}
            bound = function.signature.bind(*args, **given)
            bound.apply_defaults()
            sizes = grid(dict(bound.arguments)) if callable(grid) else grid
            note(kernel, sizes, list(bound.arguments.values()))
        return kernel

    def counted(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal configurations
        configurations = len(tuner.configs)
        try:
            return tune(tuner, *args, **kwargs)
        finally:
            configurations = 0

    functions.run, tuners.run = noted, counted
    # What a launch returns can be launched again, in two ways.
    compiled = compiler.CompiledKernel
    compiled.__getitem__ = lambda kernel, grid: lambda *args, **__: note(kernel, grid, args)
    compiled.run = property(lambda kernel: lambda x, y, z, *rest: note(kernel, (x, y, z), rest[_BEFORE:]))
    # Every configuration takes as long as the others, so that the first one is launched.
    tuners._bench = lambda *_, **__: [1.0, 1.0, 1.0]


def _passed(kernel: Any, args: Sequence[Any]) -> list[Any]:
    """Return the arguments that the built kernel takes: those that are no constants of it."""
    kinds = list(kernel.src.signature.values())
    if len(kinds) != len(args):
        return list(args)
    return [value for value, kind in zip(args, kinds, strict=True) if kind != "constexpr"]
