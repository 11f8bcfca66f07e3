"""Triton in its interpreter, where there is no GPU: fixed, and with its launches noted.

Autotuned kernels take their first configuration, as there is nothing to time others on. What the interpreter
itself cannot do is named as that (Unsupported), so that it is not held against the kernel.
"""

import importlib
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.kernelbench.chips.occupancy import WARP
from kernelwright.kernelbench.emulate import history, libdevice, small_floats
from kernelwright.kernelbench.emulate.cupy_stand_in import emulate_cupy
from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.emulate.helion_interpreter import interpret_helion
from kernelwright.kernelbench.emulate.numba_simulator import simulate
from kernelwright.kernelbench.emulate.triton_driver import NoGpu
from kernelwright.kernelbench.records import Language

_OWN = str(Path(small_floats.__file__).parent)
_NUMPY = str(Path(np.__file__).parent)
# Where the interpreter says what a kernel itself has wrong.
_OF_KERNELS = {"create_assert", "create_assume", "_new_static_assert", "validate"}


def prepare(language: Language, chip: str) -> None:
    """Prepare this process, which has no GPU, for kernels of a language, and of a chip such as "sm_90"."""
    match language:
        case "triton":
            interpret(chip)
        case "numba":
            simulate()
        case "helion":
            interpret_helion()
        case "cupy":
            emulate_cupy()


def interpret(chip: str) -> None:
    """Prepare Triton for kernels of this chip, "sm_90".

    Nothing is changed where kernels are not interpreted, or there is no Triton.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    try:
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return
    autotuner: Any = importlib.import_module("triton.runtime.autotuner")
    autotuner.Autotuner._bench = lambda *_, **__: [1.0, 1.0, 1.0]  # min takes the first of equals
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    capability = int("".join(filter(str.isdigit, chip)))
    importlib.import_module("triton.runtime.driver").driver.set_active(
        NoGpu(target("cuda", capability, WARP))
    )
    if not hasattr(interpreter.InterpretedFunction, "kernelwright"):
        interpreter.InterpretedFunction.kernelwright = True
        small_floats.patch(interpreter)
        libdevice.patch(interpreter)
        _floats_as_values(interpreter)
        _note_launches(interpreter)


def _floats_as_values(interpreter: Any) -> None:
    """Give kernels the floats of a launch as float32 values, as on a GPU: `eps.to(tl.float32)`."""
    convert, tl = interpreter._implicit_cvt, interpreter.tl

    def converted(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        with np.errstate(over="ignore"):
            value = np.array([argument], dtype=np.float32)
        return tl.tensor(interpreter.TensorHandle(value, tl.float32), tl.float32)

    interpreter._implicit_cvt = converted


def _note_launches(interpreter: Any) -> None:
    builder, functions = interpreter.InterpreterBuilder, interpreter.InterpretedFunction
    run, set_grid_dim = functions.run, builder.set_grid_dim
    programs = 0

    def counted(self: Any, *sizes: int) -> None:
        nonlocal programs
        programs = int(np.prod(sizes))
        set_grid_dim(self, *sizes)

    def noted(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        nonlocal programs
        programs = 0
        with history.watched(), _limits_named(interpreter.__file__):
            run(function, *args, grid=grid, warmup=warmup, **kwargs)
        if programs:
            history.has_run(function.fn.__name__)

    builder.set_grid_dim, functions.run = counted, noted


@contextmanager
def _limits_named(interpreter: str) -> Iterator[None]:
    """Raise Unsupported in place of an error that the interpreter, this file, has of its own."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, Unsupported):
            raise cause from None
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if not f.filename.startswith(_NUMPY)]
        last = frames[-1]
        if (last.filename == interpreter or last.filename.startswith(_OWN)) and last.name not in _OF_KERNELS:
            said = f"{type(cause).__name__}: {cause}"
            raise Unsupported(f"what Triton's interpreter stops at ({said})") from error
        raise
