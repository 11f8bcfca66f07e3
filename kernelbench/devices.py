"""Devices by name: those of `--target cuda:0,2-3`, and what CUDA and NVML call each.

>>> devices_of("cuda:0,2-3")
('cuda:0', 'cuda:2', 'cuda:3')

cuda:N is the N-th of the GPUs that CUDA_VISIBLE_DEVICES names, and without it the N-th of all in the order of
their PCI addresses, as `nvidia-smi` lists them.
"""

import os
import re
from itertools import takewhile

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError

_PART = r"(?:cuda:)?(\d{1,3})(?:-(\d{1,3}))?"  # between commas
_WHOLE = re.compile(rf"(?=cuda:){_PART}(?:,{_PART})*")


def devices_of(target: str) -> tuple[str, ...]:
    """Return the devices of a target, "cpu", "cuda" (the first GPU) or "cuda:0-3". Raises UsageError."""
    if target in ("cpu", "cuda"):
        return ("cpu" if target == "cpu" else "cuda:0",)
    if "cpu" in target.split(","):
        raise UsageError(f"--target {target} mixes the CPU and others", "use cpu alone, or GPUs alone")
    if _WHOLE.fullmatch(target) is None:
        raise UsageError(
            f"unknown target '{target}'",
            "use --target cpu, or cuda:0 for the first GPU; cuda:0-3 for several",
        )
    numbers: list[int] = []
    for first, last in re.findall(_PART, target):
        if last and int(last) < int(first):
            raise UsageError(f"--target {target}: {first}-{last} names no GPU", f"use {last}-{first}")
        numbers += range(int(first), int(last or first) + 1)
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise UsageError(f"--target {target} names cuda:{twice} twice", "name each device once")
    return tuple(f"cuda:{number}" for number in numbers)


def target_names(count: int) -> str:
    """Return the targets of a machine with so many GPUs, in words."""
    return ("cpu", "cuda:0")[count] if count < 2 else f"cuda:0 to cuda:{count - 1}"


def visible_name(device: str) -> str:
    """Return the name of a GPU in CUDA_VISIBLE_DEVICES: a number by PCI address, or a UUID.

    Raises MissingPrerequisite if that variable is set, and names fewer GPUs.
    """
    number = int(device.partition(":")[2] or 0)
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return str(number)
    # As for CUDA, the first that is no name ends the list.
    names = list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, given.split(","))))
    if number >= len(names):
        count = f"{len(names)} GPU{'s' * (len(names) != 1)}" if names else "no GPU"
        raise MissingPrerequisite(
            f"no target {device}: CUDA_VISIBLE_DEVICES={given} shows {count}",
            "name another target, or change that variable",
        )
    return names[number]
