"""kernelwright writes, verifies, measures and improves kernels for PyTorch.

The one import package of the distribution. Its rooms are subpackages: `kernelbench` (tasks and the
evaluator), `profiling`, `results`, `agent` and `rl_training`, each importing only those before it. In a
checkout they are top-level folders, and links in this folder lead to them.

A candidate imports `kernelwright.jit`. Importing kernelwright itself loads nothing else.
"""

from importlib import metadata
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("kernelwright")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
