"""Envelope of a verified kernel: shapes, dtypes, strides, device, torch version and state, and CPU.

Outside it the reference computes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value, optimization_hint

from .state import foreign, foreign_but_for_autocast

Check = Callable[..., tuple[bool, str]]


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a kernel in its verified form; strides in elements."""

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
        """Return random numbers in this form: normal ones, or indices 0 and 1."""
        if self.dtype.is_floating_point:
            made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")
            numbers = torch.randn(self.shape, generator=generator, dtype=torch.float32, device="cpu")
            return made.copy_(numbers)
        return torch.randint(0, 2, self.shape, generator=generator, device="cpu").to(self.dtype)

    def packed(self) -> "Argument":
        """Return the same argument with contiguous strides."""
        return replace(self, strides=torch.empty(self.shape, device="meta").stride())

    def conformed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor with these strides. Raises ValueError for another shape or dtype."""
        if tensor.shape != self.shape or tensor.dtype is not self.dtype:
            raise ValueError(self.problem(tensor))
        if tensor.stride() == self.strides and not tensor.is_neg():
            return tensor
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=tensor.device)
        return made.copy_(tensor)

    def problem(self, value: object) -> str:
        """Return the reason `value` does not have this form; "" if it does."""
        if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"{self.name} is not a plain tensor but {type(value).__name__}"
        if value.is_nested:
            return f"{self.name} is nested"
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
        if value.is_neg():
            return f"{self.name} has the negative bit set"
        if value._is_zerotensor():
            return f"{self.name} is a zero tensor without memory"
        return ""


def check_of(arguments: Sequence[Argument], here: str, autocast: bool) -> Check:
    """Return a function of as many tensors: (True, "") if the kernel may run, else (False, reason).

    `here`: the reason it cannot run at all, "" if it can; `autocast`: it may run under autocast. The tests
    are compiled into one expression, since they run before every call.
    """
    names = [f"a{place}" for place in range(len(arguments))]
    tests = [
        _test(name, place, each) for place, (name, each) in enumerate(zip(names, arguments, strict=True))
    ]
    usual = " and ".join([*tests, "not state()"])
    state = foreign_but_for_autocast if autocast else foreign
    values: dict[str, Any] = {"problem": _problem_of(tuple(arguments), here, state), "fits": (True, "")}
    values |= {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "state": state}
    values |= {"traced": _traced_check(tuple(arguments), state), "is_compiling": torch.compiler.is_compiling}
    for place, each in enumerate(arguments):
        values |= {f"shape{place}": each.shape, f"strides{place}": each.strides, f"dtype{place}": each.dtype}
    given = f"({', '.join(names)},)"
    body = (
        f"    return problem({given})\n"
        if here
        else f"    if is_compiling(): return traced({given})\n"
        f"    try:\n        if {usual}: return fits\n    except RuntimeError: pass\n"  # it has no sizes, say
        f"    return problem({given})\n"
    )
    exec(f"def check({', '.join(names)}):\n{body}", values)
    check: Check = values["check"]
    return check


def _test(name: str, place: int, argument: Argument) -> str:
    plain = f"{name}.is_contiguous()" if contiguous(argument) else f"{name}.stride() == strides{place}"
    # Subclasses, distributed ones say, have no plain memory behind them.
    kind = f"(type({name}) is Tensor or type({name}) is Parameter)"
    form = f"{name}.shape == shape{place} and {name}.dtype is dtype{place}"
    memory = f" and {name}.data_ptr()" if 0 not in argument.shape else ""
    return f"{kind} and {form} and {name}.is_cpu and {plain} and not {name}.is_neg(){memory}"


def contiguous(argument: Argument) -> bool:
    """Return True if the argument is contiguous."""
    return torch.empty_strided(argument.shape, argument.strides, device="meta").is_contiguous()


def _problem_of(
    arguments: tuple[Argument, ...], here: str, state: Callable[[], str]
) -> Callable[[tuple[Any, ...]], tuple[bool, str]]:
    def problem(values: tuple[Any, ...]) -> tuple[bool, str]:
        if why := here or state():
            return False, why
        found = (each.problem(value) for each, value in zip(arguments, values, strict=True))
        why = next((reason for reason in found if reason), "")
        return not why, why

    return problem


def _traced_check(
    arguments: tuple[Argument, ...], state: Callable[[], str]
) -> Callable[[tuple[Any, ...]], tuple[bool, str]]:
    """Return the check used while a graph is traced, where sizes may be symbols.

    No reason names a size, and no size is made a constant, which `mark_dynamic` forbids.
    """

    def traced(values: tuple[Any, ...]) -> tuple[bool, str]:
        if why := state():
            return False, why
        for argument, value in zip(arguments, values, strict=True):
            if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
                return False, f"{argument.name} is not a plain tensor"
            plain = value.dtype is argument.dtype and value.is_cpu and value.layout is torch.strided
            if not plain or value.dim() != len(argument.shape):
                return False, f"{argument.name} has another dtype, device, layout or rank"
            if not all(_is(size, wanted) for size, wanted in zip(value.shape, argument.shape, strict=True)):
                return False, f"{argument.name} has another shape, or a dynamic one"
            steps = zip(value.stride(), argument.strides, argument.shape, strict=True)
            if not all(count == 1 or _is(step, wanted) for step, wanted, count in steps):
                return False, f"{argument.name} has other strides"
        return True, ""

    return traced


def _is(size: Any, wanted: int) -> bool:
    """Return True if a size is this number in every call of the graph being traced.

    A symbol is not. If its hint is another number, that becomes a guard, so that calls with this number are
    traced separately.
    """
    if has_static_value(size):
        return bool(size == wanted)
    return optimization_hint(size) != wanted and bool(size == wanted)


def problem_here(torch_version: str, cpu_flags: Sequence[str]) -> str:
    """Return the reason kernels built for this torch and CPU cannot run here; "" if they can."""
    if release(torch.__version__) != release(torch_version):
        return (
            f"it was verified with torch {torch_version}, and this is {torch.__version__}: "
            "install that one, or export the kernel again"
        )
    missing = sorted(set(cpu_flags) - flags_here())
    if missing:
        flags = ", ".join(missing[:4])
        return f"it was built for a CPU with {flags}, which this one lacks: export it on this machine"
    return ""


def release(version: str) -> tuple[str, ...]:
    """Return major and minor number: "2.13.0+cpu" -> ("2", "13")."""
    return tuple(version.split(".")[:2])


@cache
def flags_here() -> frozenset[str]:
    """Return this CPU's flags as /proc/cpuinfo names them; empty without such a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.partition(":")[2].split())
