"""CuTe DSL's launches, recorded instead of executed: its compiler needs no GPU, only the name of a chip."""

import os
import re
import sys
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.chips.notes import Notebook, RecordedLaunch, three

_EXECUTOR = "cutlass.base_dsl.jit_executor"
_ENTRY = re.compile(r"\.entry\s+(?P<name>\w+)\s*\([^{]*\.(?:reqntid|maxntid)\s+(?P<threads>[\d, ]+)")


def name_chip(chip: str) -> None:
    """Have CuTe DSL, once it is imported, compile for a chip and keep what it builds."""
    built = {"KEEP_CUBIN": "1", "KEEP_PTX": "1", "DUMP_DIR": str(Path.cwd())}
    os.environ |= {f"CUTE_DSL_{name}": value for name, value in built.items()}
    os.environ["CUTE_DSL_ARCH"] = nvrtc.accelerated(chip)


def note_cute(notebook: Notebook) -> None:
    """Record launches from now on, if a candidate has imported CuTe DSL.

    The grid is not known: host code, which does not run, computes it.
    """
    executor: Any = sys.modules.get(_EXECUTOR)
    if executor is None:
        return

    def noted(function: Any, _: Any) -> None:
        found = list(_ENTRY.finditer(function.__ptx__ or ""))
        if not found:
            notebook.problem(f"{function.function_name} has no kernel with a known number of threads")
        for entry in found:
            x, y, z = three([int(size) for size in entry["threads"].split(",")])
            launch = RecordedLaunch("CuTe DSL", entry["name"], (0, 0, 0), x * y * z, 0)
            notebook.note(launch, function.__cubin__, function.__ptx__ or "")

    executor.JitCompiledFunction.run_compiled_program = noted
