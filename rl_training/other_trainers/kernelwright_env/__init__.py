"""Tasks of GPU and CPU kernels, with measured speedups as the reward, for trainers of any kind.

The reward comes from a server, `kernelwright serve evaluator`; this package needs neither kernelwright nor
torch. A module is for one trainer each and imports it; `client` is what they share.
"""

from typing import Any

__all__ = ["KernelTaskset"]  # as verifiers finds it by the name of the package


def __getattr__(name: str) -> Any:
    if name == "KernelTaskset":
        from .verifiers_taskset import KernelTaskset

        return KernelTaskset
    raise AttributeError(name)
