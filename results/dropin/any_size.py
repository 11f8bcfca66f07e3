"""Examination of a kernel for any sizes: what it takes, returns and saves at several, in names of the sizes.

    batch_size, length   x              its gradient's lines
    17, 19               [17, 19, 64]   expand = torch.ops.aten.expand.default(div, [17, 19, 64])
    23, 29               [23, 29, 64]   expand = torch.ops.aten.expand.default(div, [23, 29, 64])
    any                  [batch_size, length, 64], and lines with these names, which are read off x first

The kernel is verified at each of these, at sizes of 1, and at larger ones than those of the task's workload.
"""

import ast
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.kernelbench.evaluator.reference.loading import import_source, to_device, to_precision
from kernelwright.kernelbench.evaluator.reference.task_format import constructor_inputs, for_device, inputs_of
from kernelwright.kernelbench.free_sizes.size import FreeSize
from kernelwright.kernelbench.free_sizes.text import joined, tokens
from kernelwright.kernelbench.free_sizes.text import words as names_in
from kernelwright.kernelbench.free_sizes.unify import Grid, SizesDecide, unified
from kernelwright.kernelbench.records import Size, Task
from kernelwright.results.dropin.gradients import Gradient, NoGradient, gradients, unlike
from kernelwright.results.dropin.records import Examined, words
from kernelwright.results.dropin.runtime.accuracy import first_excess, flat, in_float64

_SMALLEST = 17  # of the sizes at which forms are compared; more than the lanes of a vector
_LARGEST = 2**22  # elements of inputs at sizes that are tried
LARGEST_WIDE = 2**27  # elements of a tensor that is computed with in float64, where it takes 1 GiB


class OneSize(Exception):  # noqa: N818 - what was found out
    """A kernel that is not for any sizes; `str()` gives the reason."""


@dataclass(frozen=True)
class _Form:
    """Findings of the examination that depend on sizes."""

    inputs: tuple[dict[str, Any], ...]
    weights: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    flops: int
    gradients: tuple[dict[str, Any], ...]


def for_any_size(
    task: Task, own: Examined, model: nn.Module, kernel: nn.Module, folder: Path, device: torch.device
) -> dict[str, Any]:
    """Return what of an examination differs for any sizes, in the fields of `Examined`.

    `own`: the examination at the task's first size; `model`, `kernel`: those of it, with equal weights, on
    `device`.
    Raises OneSize.
    """
    sizes = _first_size(task)
    names = _names(sizes, own)
    at = _Sizes(task, own, model, kernel, folder, device)
    grid = Grid.near(dict.fromkeys(sizes, _SMALLEST), _SMALLEST, _numbers(own))
    forms = [at.form(point) for point in grid.points]
    try:
        form = unified(forms, grid.named(names))
    except SizesDecide as why:
        raise OneSize(str(why)) from why
    largest = {name: max(int(size.constants[name]) for size in task.workload) for name in sizes}
    limits: dict[str, tuple[int, int | None]] = dict.fromkeys(names.values(), (1, None))
    arguments = {"inputs": form.inputs, "weights": form.weights, "outputs": form.outputs}
    found = {
        field: tuple(
            _argument(each, concrete) for each, concrete in zip(free, getattr(own, field), strict=True)
        )
        for field, free in arguments.items()
    }
    _check_arguments(found, limits)
    for name, text in names.items():
        least = at.least({**grid.low}, name)
        limits[text] = (least, at.most(grid.low, name, largest[name]))
    chosen = tuple(_with_sizes(each, found, set(names.values())) for each in form.gradients)
    at.check_gradients(chosen, names, [{**grid.high, name: limits[text][0]} for name, text in names.items()])
    flops = repr(form.flops) if isinstance(form.flops, FreeSize) else form.flops
    return {**found, "flops": flops, "gradients": chosen, "limits": limits}


@dataclass(frozen=True)
class _Sizes:
    """A task's reference and its kernel at sizes that the task's workload may not have."""

    task: Task
    own: Examined
    model: nn.Module
    kernel: nn.Module
    folder: Path
    device: torch.device

    def form(self, sizes: Mapping[str, int]) -> _Form:
        """Return what is found at these sizes. Raises OneSize if the kernel is not right there."""
        inputs, _, made = self._called(sizes)
        own = self.own
        with FlopCounterMode(display=False) as counter:
            self.model(*inputs)
        held = self._weights()
        named = [[each["name"] for each in group] for group in (own.inputs, own.weights, own.outputs)]
        found: list[Gradient] = []
        if own.gradients:
            try:
                called = [*named[0], *named[1]]
                found = gradients(self.model, inputs, own.parameters, called, named[2], own.differentiated)
            except NoGradient as why:
                raise OneSize(f"{why}, at {_said(sizes)}") from why
        return _Form(
            inputs=words(named[0], inputs),
            weights=words(named[1], [held[path] for path in own.parameters]),
            outputs=words(named[2], made),
            flops=counter.get_total_flops(),
            gradients=tuple(_in_tokens(vars(each)) for each in found),
        )

    def least(self, low: Mapping[str, int], name: str) -> int:
        """Return the smallest length, down to 1, for which the kernel is right, as it is at all above."""
        found = low[name]
        for size in (16, 8, 4, 3, 2, 1):
            if self._why_not({**low, name: size}):
                break
            found = size
        return found

    def most(self, low: Mapping[str, int], name: str, largest: int) -> int | None:
        """Return `largest`, of the workload, if the kernel or the reference is for none above it."""
        held = sum(prod(each["shape"]) for each in self.own.inputs)
        for size in (2 * largest + 1, 4 * largest + 3):
            if held * size <= _LARGEST * largest and self._why_not({**low, name: size}):
                return largest
        return None

    def check_gradients(
        self,
        found: Sequence[Mapping[str, Any]],
        names: Mapping[str, str],
        points: Sequence[Mapping[str, int]],
    ) -> None:
        """Call the gradients' lines at these sizes. Raises OneSize if autograd finds others."""
        held = self._weights()
        for point in points if found else ():
            inputs, outputs, _ = self._called(point)
            weights = [held[path].detach() for path in self.own.parameters]
            given = [each.detach().clone() for each in (*inputs, *weights)]
            grads = [torch.randn_like(each) for each in flat(outputs) if each.is_floating_point()]
            called = [each["name"] for each in (*self.own.inputs, *self.own.weights)]
            varied = [name in self.own.differentiated for name in called]
            right = self._gradients(given, varied, grads)
            values = dict(zip(called, given, strict=True))
            values |= dict(zip((each["name"] for each in self.own.outputs), flat(outputs), strict=True))
            for each in found:
                own = dict(
                    zip((name for name in each["takes"] if name not in each["uses"]), grads, strict=True)
                )
                if each["saves"]:
                    saved = _function(called, each["forward"])(**{name: values[name] for name in called})
                    own |= dict(zip(each["saves"], saved[len(flat(outputs)) :], strict=True))
                takes = {name: own[name] if name in own else values[name] for name in each["takes"]}
                made = _function(each["takes"], each["lines"])(**takes)
                try:
                    torch.testing.assert_close(tuple(made), tuple(right), equal_nan=True)
                except AssertionError as why:
                    raise OneSize(f"its gradient in names of sizes is another one at {_said(point)}") from why

    def _gradients(
        self, given: Sequence[torch.Tensor], varied: Sequence[bool], grads: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        count = len(self.own.inputs)
        with torch.enable_grad():
            given = [each.requires_grad_(varies) for each, varies in zip(given, varied, strict=True)]
            named = dict(zip(self.own.parameters, given[count:], strict=True))
            made = flat(torch.func.functional_call(self.model, named, tuple(given[:count])))
            pairs = [(m, g) for m, g in zip([m for m in made if m.is_floating_point()], grads, strict=True)]
            pairs = [(m, g) for m, g in pairs if m.requires_grad]
            wanted = [each for each in given if each.requires_grad]
            found = torch.autograd.grad(
                [m for m, _ in pairs],
                wanted,
                [g for _, g in pairs],
                allow_unused=True,
                materialize_grads=True,
            )
        return [each.contiguous() for each in found]

    def _why_not(self, sizes: Mapping[str, int]) -> str:
        try:
            self._called(sizes)
        except Exception as error:  # noqa: BLE001 - the reference may refuse a size, or the kernel
            return str(error) or type(error).__name__
        return ""

    def _called(self, sizes: Mapping[str, int]) -> tuple[list[Any], Any, tuple[torch.Tensor, ...]]:
        """Return inputs of these sizes, the reference's outputs, and the kernel's, which are right.

        Raises OneSize if they are not, or if the reference of the first size is not that of these.
        """
        task, where = self.task, _said(sizes)
        size = Size(constants={name: str(number) for name, number in sizes.items()})
        name = "_".join(["exported_reference", *map(str, sizes.values())])
        device = self.device
        module = import_source(for_device(task.at(size).source, device), name, self.folder)
        arguments = constructor_inputs(module.get_init_inputs(), module.Model)
        there = to_device(module.Model(*arguments), task.precision, device)
        given = (each.to(device) for each in inputs_of(module.get_inputs(), there))
        inputs = [to_precision(each, task.precision) for each in given]
        held = self._weights()
        others = dict(there.named_parameters()) | dict(there.named_buffers())
        if {n: each.shape for n, each in others.items()} != {n: each.shape for n, each in held.items()}:
            raise OneSize(f"its weights depend on {', '.join(sizes)}")
        for name, each in others.items():
            each.data.copy_(held[name])
        right = there(*(each.clone() for each in inputs))
        try:
            outputs = self.model(*(each.clone() for each in inputs))
            torch.testing.assert_close(outputs, right, equal_nan=True)
        except Exception as error:
            raise OneSize(
                f"the reference is another one at {where}: its forward or its constructor reads the size "
                "itself, not from a tensor's shape"
            ) from error
        try:
            made = self.kernel(*(each.clone() for each in inputs))
        except Exception as error:
            raise OneSize(f"the kernel fails at {where} ({type(error).__name__}: {error})") from error
        small = max(each.numel() for each in (*inputs, *held.values())) <= LARGEST_WIDE
        exact = in_float64(copy.deepcopy(self.model).double(), inputs, outputs) if small else outputs
        if why := first_excess(made, outputs, exact):
            raise OneSize(f"the kernel is wrong at {where}: {why}")
        return inputs, outputs, tuple(flat(made))

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters()) | dict(self.model.named_buffers())


def _first_size(task: Task) -> dict[str, int]:
    """Return the lengths of the task's axes at its first size. Raises OneSize if they are none."""
    for size in task.workload:
        for name in task.axes:
            value = ast.literal_eval(size.constants[name])
            if type(value) is not int or value < 1:
                raise OneSize(f"{name} is {size.constants[name]}, which is no length")
    return {name: int(task.workload[0].constants[name]) for name in task.axes}


def _names(sizes: Mapping[str, int], own: Examined) -> dict[str, str]:
    """Return the names of free sizes in a package: the constants', unless something else is called so."""
    taken = {"self", "torch", "wanted", *(each["name"] for each in (*own.inputs, *own.weights, *own.outputs))}
    for gradient in own.gradients:
        taken |= set(re.findall(r"\w+", "\n".join((*gradient["lines"], *gradient["forward"]))))
    found: dict[str, str] = {}
    for name in sizes:
        found[name] = unlike(name.lower().lstrip("_") or "size", [*taken, *found.values()])
    return found


def _numbers(own: Examined) -> set[int]:
    """Return the numbers in shapes and strides, which no size that is tried may equal."""
    arguments = (*own.inputs, *own.weights, *own.outputs)
    return {number for each in arguments for number in (*each["shape"], *each["strides"])}


def _in_tokens(gradient: Mapping[str, Any]) -> dict[str, Any]:
    """Return a gradient whose lines are texts and numbers in turn."""
    lines = {part: tuple(map(tokens, gradient[part])) for part in ("lines", "forward")}
    return {**gradient, "products": dict(gradient["products"]), **lines}


def _argument(free: Mapping[str, Any], concrete: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument at the first size, with the texts of its free sizes if it has any."""
    texts = {
        name: tuple(repr(each) if isinstance(each, FreeSize) else None for each in free[part])
        for name, part in (("free", "shape"), ("free_strides", "strides"))
    }
    return {**concrete, **texts} if any(text for each in texts.values() for text in each) else {**concrete}


def _check_arguments(found: Mapping[str, Sequence[Mapping[str, Any]]], names: Mapping[str, Any]) -> None:
    """Raise OneSize unless each size is the length of an axis of an input."""
    read = {text for each in found["inputs"] for text in each.get("free", ())}
    if lost := [name for name in names if name not in read]:
        raise OneSize(f"{lost[0]} is not the length of an input's axis")


def _with_sizes(
    gradient: Mapping[str, Any], found: Mapping[str, Sequence[Mapping[str, Any]]], names: set[str]
) -> dict[str, Any]:
    """Return a gradient in lines of text, which first read the sizes in them off its arguments."""
    body = [joined(line) for line in gradient["lines"]]
    forward = [joined(line) for line in gradient["forward"]]
    grads = [name for name in gradient["takes"] if name not in gradient["uses"]]
    of_grads = [each for each in found["outputs"] if "float" in each["dtype"]]
    forms = [*({**each, "name": name} for name, each in zip(grads, of_grads, strict=True))]
    uses = list(gradient["uses"])
    given = [each for each in (*found["inputs"], *found["outputs"]) if each["name"] in uses]
    reading = []
    for name in sorted(names_in(body) & names):
        tensor, axis = _place(name, [*forms, *given, *found["inputs"]])
        reading.append(f"{name} = {tensor}.shape[{axis}]")
        if tensor not in (*grads, *uses):
            uses.append(tensor)
    first = []
    for name in sorted(names_in(forward) & names):
        tensor, axis = _place(name, found["inputs"])
        first.append(f"{name} = {tensor}.shape[{axis}]")
    products = {
        name: repr(flops) if isinstance(flops, FreeSize) else flops
        for name, flops in gradient["products"].items()
    }
    return {
        **gradient,
        "takes": (*grads, *uses),
        "uses": tuple(uses),
        "lines": (*reading, *body),
        "forward": (*first, *forward),
        "products": products,
    }


def _place(name: str, arguments: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Return the first argument, and its axis, whose length a free size is."""
    return next(
        (each["name"], each["free"].index(name)) for each in arguments if name in each.get("free", ())
    )


def _function(takes: Sequence[str], lines: Sequence[str]) -> Callable[..., Any]:
    values: dict[str, Any] = {"torch": torch}
    exec(f"def of({', '.join(takes)}):\n" + "\n".join(f"    {line}" for line in lines), values)
    found: Callable[..., Any] = values["of"]
    return found


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
