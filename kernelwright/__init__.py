"""kernelwright writes, verifies, measures and improves kernels for PyTorch.

The one import package of the distribution. Its rooms are subpackages: `kernelbench` (tasks and the
evaluator), `profiling`, `results`, `agent` and `rl_training`, each importing only those before it. In a
checkout they are top-level folders, and links in this folder lead to them.

A candidate imports `kernelwright.jit`. `optimize`, `evaluate` and what they return and raise are the Python
API, loaded when first used: importing kernelwright itself loads nothing else.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.api import evaluate, optimize
    from kernelwright.kernelbench.errors import (
        KernelwrightError,
        MissingPrerequisite,
        StorageError,
        UsageError,
    )
    from kernelwright.kernelbench.records import Evaluation, Interval
    from kernelwright.result import Result

__all__ = [
    "Evaluation",
    "Interval",
    "KernelwrightError",
    "MissingPrerequisite",
    "Result",
    "StorageError",
    "UsageError",
    "evaluate",
    "optimize",
]
_FROM = {"evaluate": "api", "optimize": "api", "Result": "result"}
_FROM |= dict.fromkeys(("Evaluation", "Interval"), "kernelbench.records")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("kernelwright")
    if name in __all__:
        return getattr(import_module(f"kernelwright.{_FROM.get(name, 'kernelbench.errors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
