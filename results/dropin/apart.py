"""`examine` in a separate process, which imports the verified kernel."""

import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Candidate, Task


def examined_apart(task: Task, candidate: Candidate, fresh: bool = True) -> Any:
    """Examine a kernel for a package, see `examine.examined`. Raises UsageError."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        try:
            return pool.submit(partial(_examine, task, candidate, Path(folder), fresh)).result()
        except BrokenProcessPool:
            raise UsageError(
                f"the kernel of {task.id} crashed the process that called it",
                "export kernels that call their C++ through kernelwright.jit",
            ) from None


def _examine(task: Task, candidate: Candidate, folder: Path, fresh: bool) -> Any:
    from kernelwright.results.dropin.examine import examined

    warnings.simplefilter("ignore")
    return examined(task, candidate, folder, fresh)
