"""The device that a package's kernels run on.

Triton's interpreter, and kernelwright's emulator of CUDA C++, may stand in for a GPU (TRITON_INTERPRET=1):
kernels then take tensors of the CPU.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

KIND = "cpu"  # or "cuda"; the package's own
IS_EMULATED = KIND == "cuda" and os.environ.get("TRITON_INTERPRET") == "1"
TYPE = "cpu" if IS_EMULATED else KIND  # of the tensors that kernels take
NAME = {"cpu": "the CPU", "cuda": "a GPU"}[TYPE]
KEY = {"cpu": "CPU", "cuda": "CUDA"}[TYPE]  # of torch's dispatcher


def problem_here(capabilities: Sequence[Sequence[int]]) -> str:
    """Return the reason kernels cannot run on this machine's device; "" if they can.

    `capabilities`: the compute capabilities that they were verified on, or built for where they were verified
    in emulation alone; empty where Triton builds them on any.
    """
    if TYPE == "cpu":
        return ""
    if not torch.cuda.is_available():
        return "it runs on a GPU, and torch finds none"
    here = torch.cuda.get_device_capability()
    if capabilities and list(here) not in [list(each) for each in capabilities]:
        known = ", ".join(f"{major}.{minor}" for major, minor in capabilities)
        return (
            f"it is for compute capability {known}, and this GPU has {here[0]}.{here[1]}: "
            "export it on this machine"
        )
    return ""


def launching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that launches kernels on the device of its first tensor."""
    if TYPE == "cpu":
        return function

    def call(*tensors: torch.Tensor) -> Any:
        with torch.cuda.device(tensors[0].device):
            return function(*tensors)

    return call


def finished() -> None:
    """Wait until the device has done what it was given."""
    if TYPE == "cuda":
        torch.cuda.synchronize()
