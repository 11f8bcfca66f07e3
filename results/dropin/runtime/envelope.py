"""For which calls a kernel was verified and measured: shapes, dtypes, strides, device, torch and CPU.

Outside it the reference computes, so that a package is never wrong, only not faster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

Check = Callable[..., tuple[bool, str]]


@dataclass(frozen=True)
class Argument:
    """A tensor that a kernel takes, as it was when the kernel was verified; strides in elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def read(cls, words: Mapping[str, Any]) -> "Argument":
        return cls(
            words["name"], tuple(words["shape"]), tuple(words["strides"]), getattr(torch, words["dtype"])
        )

    def words(self) -> dict[str, Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        return {"name": self.name, "shape": self.shape, "strides": self.strides, "dtype": dtype}

    def like(self, generator: torch.Generator) -> torch.Tensor:
        """Numbers by chance in this form: normal ones, or indices 0 and 1."""
        if self.dtype.is_floating_point:
            made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
            return made.copy_(torch.randn(self.shape, generator=generator))
        return torch.randint(0, 2, self.shape, generator=generator).to(self.dtype)

    def problem(self, value: object) -> str:
        """Why `value` is not such a tensor; "" where it is."""
        if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"{self.name} is no plain tensor but {type(value).__name__}"
        if tuple(value.shape) != self.shape:
            return f"{self.name} has shape {tuple(value.shape)}, the kernel was verified for {self.shape}"
        if value.dtype is not self.dtype:
            return f"{self.name} is {value.dtype}, the kernel was verified for {self.dtype}"
        if value.device.type != "cpu":
            return f"{self.name} is on {value.device}, the kernel runs on the CPU"
        if value.layout is not torch.strided:
            return f"{self.name} is not dense but {value.layout}"
        if tuple(value.stride()) != self.strides:
            return f"{self.name} has strides {value.stride()}, the kernel was verified for {self.strides}"
        return ""


def check_of(arguments: Sequence[Argument], here: str) -> Check:
    """A function of as many tensors: (True, "") where the kernel may run, else (False, why).

    `here`: why it can run on no tensor at all, "" where it can. The tests are written into one expression,
    for they run before every call.
    """
    names = [f"a{place}" for place in range(len(arguments))]
    tests = [
        _test(name, place, each) for place, (name, each) in enumerate(zip(names, arguments, strict=True))
    ]
    usual = " and ".join(tests) or "True"
    values: dict[str, Any] = {"problem": _problem_of(tuple(arguments), here), "fits": (True, "")}
    values |= {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter}
    for place, each in enumerate(arguments):
        values |= {f"shape{place}": each.shape, f"strides{place}": each.strides, f"dtype{place}": each.dtype}
    body = (
        "return problem(({},))".format(", ".join(names))
        if here
        else f"return fits if {usual} else problem(({', '.join(names)},))"
    )
    exec(f"def check({', '.join(names)}):\n    {body}", values)
    check: Check = values["check"]
    return check


def _test(name: str, place: int, argument: Argument) -> str:
    plain = f"{name}.is_contiguous()" if _contiguous(argument) else f"{name}.stride() == strides{place}"
    # Subclasses, distributed ones say, have no plain memory behind them.
    kind = f"(type({name}) is Tensor or type({name}) is Parameter)"
    form = f"{name}.shape == shape{place} and {name}.dtype is dtype{place}"
    return f"{kind} and {form} and {name}.is_cpu and {plain}"


def _contiguous(argument: Argument) -> bool:
    return torch.empty_strided(argument.shape, argument.strides, device="meta").is_contiguous()


def _problem_of(arguments: tuple[Argument, ...], here: str) -> Callable[[tuple[Any, ...]], tuple[bool, str]]:
    def problem(values: tuple[Any, ...]) -> tuple[bool, str]:
        if here:
            return False, here
        found = (each.problem(value) for each, value in zip(arguments, values, strict=True))
        why = next((reason for reason in found if reason), "")
        return not why, why

    return problem


def problem_here(torch_version: str, cpu_flags: Sequence[str]) -> str:
    """Why kernels that were built for this torch and such a CPU cannot run here; "" where they can."""
    if release(torch.__version__) != release(torch_version):
        return (
            f"it was verified with torch {torch_version}, here is {torch.__version__}: "
            "install that one, or export the kernel again"
        )
    missing = sorted(set(cpu_flags) - flags_here())
    if missing:
        return f"it was built for a CPU with {', '.join(missing[:4])}, which this one has not: export it here"
    return ""


def release(version: str) -> tuple[str, ...]:
    """Major and minor number: "2.13.0+cpu" -> ("2", "13")."""
    return tuple(version.split(".")[:2])


@cache
def flags_here() -> frozenset[str]:
    """What this CPU has, in the words of /proc/cpuinfo; nothing where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.partition(":")[2].split())
