"""Envelope of a verified kernel: shapes, dtypes, strides, device, torch version and state, and CPU.

Axes of free sizes may have any length within limits. Outside the envelope the reference computes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value, optimization_hint

from .device import NAME, TYPE
from .sizes import Limits, Size, at, beyond, places_of, read
from .state import foreign, foreign_but_for_autocast

Check = Callable[..., tuple[bool, str]]
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a kernel in its verified form; strides in elements.

    `free` and `free_strides` have for each axis the text of a free size, see `sizes`, or None for a number;
    they are empty where all are numbers. `shape` and `strides` are then those at one size.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    free: tuple[str | None, ...] = ()
    free_strides: tuple[str | None, ...] = ()

    @classmethod
    def read(cls, words: Mapping[str, Any]) -> "Argument":
        return cls(
            words["name"],
            tuple(words["shape"]),
            tuple(words["strides"]),
            getattr(torch, words["dtype"]),
            tuple(words.get("free", ())),
            tuple(words.get("free_strides", ())),
        )

    def words(self) -> dict[str, Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        found = {"name": self.name, "shape": self.shape, "strides": self.strides, "dtype": dtype}
        return {**found, "free": self.free, "free_strides": self.free_strides} if self.free else found

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Lengths of the axes: numbers, or texts of free sizes."""
        return _either(self.free, self.shape)

    @property
    def steps(self) -> tuple[Size, ...]:
        """Strides: numbers, or texts of free sizes."""
        return _either(self.free_strides, self.strides)

    def at(self, sizes: Mapping[str, Any]) -> "Argument":
        """Return the argument where its free sizes have these values, which may be symbols."""
        if not self.free:
            return self
        shape = tuple(at(size, sizes) for size in self.sizes)
        return replace(self, shape=shape, strides=tuple(at(step, sizes) for step in self.steps))

    def _form(self, sizes: Mapping[str, Any] | None) -> "Argument":
        """Return the argument at these sizes; itself where they are not known, as beside a wrong rank."""
        try:
            return self if sizes is None else self.at(sizes)
        except NameError:
            return self

    def like(self, generator: torch.Generator) -> torch.Tensor:
        """Return random numbers in this form: normal ones, or indices 0 and 1."""
        if self.dtype.is_floating_point:
            made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=TYPE)
            numbers = torch.randn(self.shape, generator=generator, dtype=torch.float32, device="cpu")
            return made.copy_(numbers)
        return torch.randint(0, 2, self.shape, generator=generator, device="cpu").to(TYPE, self.dtype)

    def packed(self) -> "Argument":
        """Return the same argument with contiguous strides."""
        strides = torch.empty(self.shape, device="meta").stride()
        if not self.free:
            return replace(self, strides=strides)
        steps: list[Size] = [1]
        for size in self.sizes[:0:-1]:
            last = steps[-1]
            numbers = isinstance(size, int) and isinstance(last, int)
            steps.append(int(size) * int(last) if numbers else f"({size}) * {last}")
        free = tuple(step if isinstance(step, str) else None for step in steps[::-1])
        return replace(self, strides=strides, free_strides=free)

    def conformed(self, tensor: torch.Tensor, sizes: Mapping[str, Any] | None = None) -> torch.Tensor:
        """Return the tensor with these strides, where the free sizes have these values.

        Raises ValueError for another shape or dtype.
        """
        form = self._form(sizes)
        if tensor.shape != form.shape or tensor.dtype is not self.dtype:
            raise ValueError(form.problem(tensor))
        if tensor.stride() == form.strides and not tensor.is_neg():
            return tensor
        made = torch.empty_strided(form.shape, form.strides, dtype=self.dtype, device=tensor.device)
        return made.copy_(tensor)

    def problem(self, value: object, sizes: Mapping[str, Any] | None = None) -> str:
        """Return the reason `value` does not have this form, at these free sizes; "" if it does."""
        if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"{self.name} is not a plain tensor but {type(value).__name__}"
        if value.is_nested:
            return f"{self.name} is nested"
        form = self._form(sizes)
        if tuple(value.shape) != form.shape:
            wanted = f"({', '.join(map(str, self.sizes))})" if self.free else self.shape
            return f"{self.name} has shape {tuple(value.shape)}, the kernel was verified for {wanted}"
        if value.dtype is not self.dtype:
            return f"{self.name} is {value.dtype}, the kernel was verified for {self.dtype}"
        if value.device.type != TYPE:
            return f"{self.name} is on {value.device}, the kernel runs on {NAME}"
        if value.layout is not torch.strided:
            return f"{self.name} is not dense but {value.layout}"
        if tuple(value.stride()) != form.strides and not (contiguous(self) and value.is_contiguous()):
            return f"{self.name} has strides {value.stride()}, the kernel was verified for {form.strides}"
        if value.is_neg():
            return f"{self.name} has the negative bit set"
        if value._is_zerotensor():
            return f"{self.name} is a zero tensor without memory"
        return ""


def _either(texts: Sequence[str | None], numbers: tuple[int, ...]) -> tuple[Size, ...]:
    if not texts:
        return numbers
    return tuple(n if text is None else text for text, n in zip(texts, numbers, strict=True))


def check_of(arguments: Sequence[Argument], here: str, autocast: bool, limits: Limits | None = None) -> Check:
    """Return a function of as many tensors: (True, "") if the kernel may run, else (False, reason).

    `here`: the reason it cannot run at all, "" if it can; `autocast`: it may run under autocast; `limits`: of
    free sizes. The tests are compiled into one expression, since they run before every call.
    """
    limits = limits or {}
    names = [f"_a{place}" for place in range(len(arguments))]
    pairs = list(zip(names, arguments, strict=True))
    first = places_of(arguments)
    shapes = [_shape_tests(name, place, each, limits, first) for place, (name, each) in enumerate(pairs)]
    tests = [*(binding for binding, _ in shapes), *(known for _, known in shapes if known)]
    tests += [_test(name, place, each) for place, (name, each) in enumerate(pairs)]
    usual = " and ".join([*tests, "not _state()"])
    state = foreign_but_for_autocast if autocast else foreign
    values: dict[str, Any] = {"_problem": _problem_of(tuple(arguments), here, state, limits)}
    values |= {"_Tensor": torch.Tensor, "_Parameter": torch.nn.Parameter, "_state": state}
    traced = _traced_check(tuple(arguments), state, limits)
    values |= {"_fits": (True, ""), "_traced": traced, "_is_compiling": torch.compiler.is_compiling}
    for place, each in enumerate(arguments):
        values |= {
            f"_shape{place}": each.shape,
            f"_strides{place}": each.strides,
            f"_dtype{place}": each.dtype,
        }
    given = f"({', '.join(names)},)"
    body = (
        f"    return _problem({given})\n"
        if here
        else f"    if _is_compiling(): return _traced({given})\n"
        f"    try:\n        if {usual}: return _fits\n    except RuntimeError: pass\n"  # it has no sizes, say
        f"    return _problem({given})\n"
    )
    exec(f"def check({', '.join(names)}):\n{body}", values)
    check: Check = values["check"]
    return check


def _shape_tests(
    name: str, place: int, argument: Argument, limits: Limits, first: Mapping[str, tuple[int, int]]
) -> tuple[str, str]:
    """Return the tests of a tensor's class and shape: that which binds the free sizes, then that by them."""
    # Subclasses, distributed ones say, have no plain memory behind them.
    kind = f"(type({name}) is _Tensor or type({name}) is _Parameter)"
    if not argument.free:
        return f"{kind} and {name}.shape == _shape{place}", ""
    binding, known = [kind, f"len(_s{place} := {name}.shape) == {len(argument.shape)}"], []
    for axis, size in enumerate(argument.sizes):
        if isinstance(size, str) and first.get(size) == (place, axis):
            least, most = limits[size]
            end = "" if most is None else f" <= {most}"
            binding.append(f"{least} <= ({size} := _s{place}[{axis}]){end}")
        else:
            known.append(f"_s{place}[{axis}] == {size}")
    return " and ".join(binding), " and ".join(known)


def _test(name: str, place: int, argument: Argument) -> str:
    steps = f"({', '.join(map(str, argument.steps))},)" if argument.free else f"_strides{place}"
    plain = f"{name}.is_contiguous()" if contiguous(argument) else f"{name}.stride() == {steps}"
    memory = f" and {name}.data_ptr()" if 0 not in argument.shape else ""
    return f"{name}.dtype is _dtype{place} and {name}.is_{TYPE} and {plain} and not {name}.is_neg(){memory}"


def contiguous(argument: Argument) -> bool:
    """Return True if the argument is contiguous, at all of its free sizes."""
    if not argument.free:
        return torch.empty_strided(argument.shape, argument.strides, device="meta").is_contiguous()
    # At two primes, which no axis has: where one is 1, strides tell less.
    names = {
        name for text in (*argument.free, *argument.free_strides) if text for name in _WORD.findall(text)
    }
    form = argument.at(dict.fromkeys(names, 97))
    return form.strides == torch.empty(form.shape, device="meta").stride()


def _problem_of(
    arguments: tuple[Argument, ...], here: str, state: Callable[[], str], limits: Limits
) -> Callable[[tuple[Any, ...]], tuple[bool, str]]:
    def problem(values: tuple[Any, ...]) -> tuple[bool, str]:
        if why := here or state():
            return False, why
        dense = [each if isinstance(each, torch.Tensor) and not each.is_nested else None for each in values]
        sizes = read(arguments, dense)
        if why := beyond(sizes, limits):
            return False, why
        found = (each.problem(value, sizes) for each, value in zip(arguments, values, strict=True))
        why = next((reason for reason in found if reason), "")
        return not why, why

    return problem


def _traced_check(
    arguments: tuple[Argument, ...], state: Callable[[], str], limits: Limits
) -> Callable[[tuple[Any, ...]], tuple[bool, str]]:
    """Return the check used while a graph is traced, where sizes may be symbols.

    No reason names a size, and no size is made a constant, which `mark_dynamic` forbids.
    """
    places = [(*each, *limits[name]) for name, each in places_of(arguments).items()]
    names = ", ".join(places_of(arguments))
    forms = [eval(f"lambda {names}: ({_tuple(each.sizes)}, {_tuple(each.steps)})") for each in arguments]
    dense = [bool(each.free) and contiguous(each) for each in arguments]

    def traced(values: tuple[Any, ...]) -> tuple[bool, str]:
        if why := state():
            return False, why
        for argument, value in zip(arguments, values, strict=True):
            if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
                return False, f"{argument.name} is not a plain tensor"
            here = value.device.type == TYPE and value.layout is torch.strided
            plain = value.dtype is argument.dtype and here
            if not plain or value.dim() != len(argument.shape):
                return False, f"{argument.name} has another dtype, device, layout or rank"
        sizes = []
        for place, axis, least, most in places:
            size = values[place].shape[axis]
            if size < least or (most is not None and size > most):
                return False, f"{arguments[place].name} has another shape, or a dynamic one"
            sizes.append(size)
        for argument, value, form, packed in zip(arguments, values, forms, dense, strict=True):
            shape, strides = form(*sizes)
            if not all(_is(size, wanted) for size, wanted in zip(value.shape, shape, strict=True)):
                return False, f"{argument.name} has another shape, or a dynamic one"
            if packed and value.is_contiguous():
                continue
            steps = zip(value.stride(), strides, shape, strict=True)
            if not all(_is_one(count) or _is(step, wanted) for step, wanted, count in steps):
                return False, f"{argument.name} has other strides"
        return True, ""

    return traced


def _tuple(sizes: Sequence[Size]) -> str:
    return f"({''.join(f'{size}, ' for size in sizes)})"


def _is_one(size: Any) -> bool:
    return has_static_value(size) and bool(size == 1)


def _is(size: Any, wanted: Any) -> bool:
    """Return True if a size is this one in every call of the graph being traced.

    A symbol is no number. If its hint is another number, that becomes a guard, so that calls with this number
    are traced separately. Two symbols that have the same value become one.
    """
    if has_static_value(size) == has_static_value(wanted):
        return bool(size == wanted)
    if has_static_value(size):
        return False
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
