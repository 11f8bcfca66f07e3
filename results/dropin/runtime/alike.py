"""Comparison of a layer with a kernel's reference: it must compute the same, and do nothing else.

It is tried on random numbers: with the layer's own weights in both modes, and with others, since its own may
all be zero; on small numbers, where an epsilon shows, and on large ones, where a clamp does. So are its
gradients. What bf16 and fp16 would hide shows in float32, with which such layers are tried, too.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from operator import and_
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .accuracy import first_excess, is_half, widened
from .device import TYPE
from .envelope import Argument, contiguous
from .kernel import DropInKernel
from .parts import is_machinery, other_setting, place_of, stock, tensor_at
from .state import verified

_SCALES = (1e-3, 1.0, 30.0)  # of inputs


def differs(kernel: DropInKernel, layer: nn.Module, names: Sequence[str], for_inference: bool = False) -> str:
    """Describe how the layer differs from the kernel's reference; "" if it does not.

    It may use another epsilon, say, or apply a dropout in training mode. `names`: the parameters and buffers
    the kernel takes. `for_inference`: its gradients do not count, and it may write its results into its
    inputs, which nobody reads then.
    """
    generator = torch.Generator().manual_seed(0)
    with _left_as_it_was(layer), torch.inference_mode(False), torch.no_grad(), verified():
        weights = [tensor_at(*place_of(layer, name)) for name in names]
        for sizes in (None, *filter(None, [kernel.other_sizes()])):
            inputs = [(each.at(sizes) if sizes else each).like(generator) for each in kernel.inputs]
            right = kernel.by_reference(*(each.clone() for each in (*inputs, *weights)))
            exact = kernel.by_reference(*(widened(each, _wide(each.dtype)) for each in (*inputs, *weights)))
            for mode in (False, True):
                layer.train(mode)
                when = f"in {'training' if mode else 'evaluation'} mode"
                try:
                    why = _in_this_mode(kernel, layer, inputs, right, exact, for_inference)
                except Exception as error:  # noqa: BLE001 - it is the model's code
                    return f"it cannot be called with the kernel's inputs ({_said(error)})"
                if why:
                    return f"{when} it {why}"
        return _with_other_weights(kernel, layer, names, generator, for_inference)


def _in_this_mode(
    kernel: DropInKernel,
    layer: nn.Module,
    inputs: Sequence[torch.Tensor],
    right: Any,
    exact: Any,
    for_inference: bool,
) -> str:
    """Describe how the layer differs with its own weights in its current mode; "" if it does not.

    `right`: what the reference computes; `exact`: the same, in float32 instead of bf16 or fp16.
    """
    drawn, before = _drawn(layer), [(each, each.clone()) for each in layer.buffers()]
    runs, kept = [], []
    for _ in range(2):
        given = [each.clone() for each in inputs]
        runs.append(stock(layer)(*given))
        kept.append([(module, dict(vars(module))) for module in layer.modules()])
        if not for_inference and any(map(_unlike, given, inputs)):
            return "modifies its inputs"
    if _drawn(layer) != drawn:
        return "draws random numbers, as a dropout does"
    if form := _other_form(kernel, runs[0]):
        return f"returns {form}, unlike the kernel"
    if worst := _unlike(runs[1], runs[0]):
        return f"is not deterministic ({worst})"
    if worst := _other_result(runs[0], right, exact):
        return f"computes something other than the kernel's reference ({worst})"
    for (module, first), (_, second) in zip(*kept, strict=False):
        settings = ((name, value) for name, value in first.items() if not is_machinery(name))
        if name := other_setting(second, settings):
            return f"keeps state between calls ({name} of {type(module).__name__})"
    after = list(layer.buffers())
    if len(after) != len(before) or any(
        now is not each or _unlike(each, value) for now, (each, value) in zip(after, before, strict=True)
    ):
        return "writes into its buffers"
    if kernel.under_autocast:
        with torch.autocast(TYPE, torch.bfloat16):
            found = stock(layer)(*(each.clone() for each in inputs))
        if worst := _unlike(found, runs[0]):
            return f"differs under autocast ({worst}), unlike the reference"
    return ""


def _with_other_weights(
    kernel: DropInKernel,
    layer: nn.Module,
    names: Sequence[str],
    generator: torch.Generator,
    for_inference: bool,
) -> str:
    """Describe how the layer or its gradients differ with other weights; "" if they do not."""
    places, count = [place_of(layer, name) for name in names], len(kernel.inputs)
    vary = [n in module._parameters and tensor_at(module, n).is_floating_point() for module, n in places]
    _widen(layer)
    own = [tensor_at(*place) for place in places]
    arguments = [replace(each, dtype=_wide(each.dtype)) for each in kernel.arguments]

    def call(*tensors: torch.Tensor) -> Any:
        for (module, name), tensor, varies in zip(places, tensors[count:], vary, strict=True):
            if varies:
                module._parameters[name] = tensor  # put back in the end
        return stock(layer)(*tensors[:count])

    for scale in _SCALES:
        numbers = f"on numbers of about {scale:g} it"
        inputs = [_scaled(each.like(generator), scale) for each in arguments[:count]]
        weights = [
            _weight(argument, scale, generator) if varies else each
            for argument, each, varies in zip(arguments[count:], own, vary, strict=True)
        ]
        with RoundingMode() as seen:
            right = _all(kernel.by_reference(*inputs, *weights))
        if not all(each.isfinite().all() for each in right):
            continue  # which says little
        near = _all(kernel.by_reference(*(_nearly(each, generator) for each in inputs), *weights))
        try:
            made = call(*(each.clone() for each in (*inputs, *weights)))
        except Exception as error:  # noqa: BLE001
            return f"{numbers} cannot be called ({_said(error)})"
        for ours, theirs, moved in zip(_all(made), right, near, strict=True):
            room = 20 * _apart(moved, theirs) + max(_rounding(theirs.dtype), seen.error) * _largest(theirs)
            if not (worst := _apart(ours, theirs)) <= room:  # or NaN
                return f"{numbers} differs from the kernel's reference (by {worst:.2g})"
        if scale != 1.0 or for_inference or not kernel.trainable:
            continue
        wanted = list(map(and_, kernel.differentiated, [*([True] * count), *vary]))
        if why := _other_gradients(kernel, call, (*inputs, *weights), wanted, generator, seen.error):
            return why
    return ""


def _other_gradients(
    kernel: DropInKernel,
    call: Callable[..., Any],
    given: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    generator: torch.Generator,
    rounded: float,
) -> str:
    """Describe how the wanted gradients differ, if the layer detaches something, say; "" if they do not."""
    to = [_normal(each.shape, _wide(each.dtype), generator) for each in kernel.outputs]
    right = _gradients(kernel.by_reference, given, wanted, to)
    try:
        found = _gradients(call, given, wanted, to)
    except Exception as error:  # noqa: BLE001
        return f"its gradient cannot be computed ({_said(error)})"
    largest = max((_largest(each) for each in right), default=0.0)
    arguments = compress(kernel.arguments, wanted)
    for ours, theirs, argument in zip(found, right, arguments, strict=True):
        room = 1e-6 * largest + max(torch.finfo(theirs.dtype).eps ** 0.5, rounded) * _largest(theirs)
        if not (worst := _apart(ours, theirs)) <= room:
            return f"its gradient of {argument.name} differs from the reference's (by {worst:.2g})"
    return ""


class RoundingMode(TorchDispatchMode):
    """Notes whether something rounds to half precision, as a traced reference does whatever its inputs are.

    `error`: what that may change of a result, relative to the largest; 0.0 where nothing does.
    """

    error = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, torch.Tensor) and is_half(each.dtype):
                self.error = max(self.error, 4 * torch.finfo(each.dtype).eps)
        return made


def _gradients(
    call: Callable[..., Any],
    given: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    to: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Return the gradients of the wanted arguments; zeros where there is none."""
    with torch.enable_grad():
        given = [
            each.detach().clone().requires_grad_(varies) for each, varies in zip(given, wanted, strict=True)
        ]
        inputs = list(compress(given, wanted))
        pairs = [(m, grad) for m, grad in zip(_all(call(*given)), to, strict=True) if m.requires_grad]
        if not pairs:
            return [torch.zeros_like(each) for each in inputs]
        made, grads = zip(*pairs, strict=True)
        return list(torch.autograd.grad(made, inputs, grads, allow_unused=True, materialize_grads=True))


def _all(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _normal(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(TYPE, dtype)


def _weight(argument: Argument, scale: float, generator: torch.Generator) -> torch.Tensor:
    """Return random weights of a scale that keeps the size of a product's or a sum's input."""
    made = argument.like(generator)
    return made.mul_(made.shape[-1] ** -0.5 if made.dim() > 1 else scale)


def _scaled(tensor: torch.Tensor, by: float) -> torch.Tensor:
    return tensor.mul_(by) if tensor.is_floating_point() else tensor


def _nearly(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the tensor with simulated rounding: differences of this size do not count."""
    if not tensor.is_floating_point():
        return tensor
    noise = _normal(tensor.shape, tensor.dtype, generator)
    return tensor + tensor * noise * torch.finfo(tensor.dtype).eps


def _rounding(dtype: torch.dtype) -> float:
    """Return the tolerance of outputs relative to the largest, for sums in another order."""
    if not dtype.is_floating_point:
        return 0.0
    return 100 * torch.finfo(dtype).eps


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def _apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return _largest(ours.double() - theirs.double())


def _other_form(kernel: DropInKernel, found: Any) -> str:
    """Describe how the result's type or layout differs from the kernel's outputs; "" if it does not."""
    if type(found) is not (torch.Tensor if len(kernel.outputs) == 1 else tuple):
        return f"a {type(found).__name__}"
    for made, output in zip(_all(found), kernel.outputs, strict=True):
        if type(made) is not torch.Tensor:
            return f"a {type(made).__name__}"
        if not contiguous(output) and not output.free and made.stride() != output.strides:
            return f"strides {made.stride()}"
    return ""


def _other_result(found: Any, right: Any, exact: Any) -> str:
    """Describe how far a layer's result is from the reference's; "" if they are close for their dtype."""
    half = any(is_half(each.dtype) for each in _all(right))
    return first_excess(found, right, exact) if half else _unlike(found, right)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if is_half(dtype) else dtype


def _widen(layer: nn.Module) -> None:
    """Make parameters and buffers in half precision float32; they are put back in the end."""
    for module in layer.modules():
        for held in (module._parameters, module._buffers):
            for name, each in held.items():
                if each is not None and is_half(each.dtype):
                    held[name] = each.float()


def _unlike(found: Any, wanted: Any) -> str:
    """Describe how far apart two results are; "" if they are close."""
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True)
    except AssertionError as error:
        lines = str(error).strip().splitlines()
        return next((line for line in lines if line.startswith("Greatest absolute")), lines[0]).lower()
    except TypeError:  # of other things than tensors
        return f"{type(found).__name__} instead of {type(wanted).__name__}"
    return ""


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def _drawn(layer: nn.Module) -> list[Any]:
    """Return the state of all random number generators: the process's and the layer's own."""
    numpy = _numpy()
    found: list[Any] = [each.get_state().tolist() for each in _generators(layer)]
    return [*found, random.getstate(), *(str(each) for each in (numpy.get_state()[1:3] if numpy else ()))]


def _generators(layer: nn.Module) -> list[Any]:
    held = [value for module in layer.modules() for value in vars(module).values()]
    return [torch.default_generator, *(each for each in held if isinstance(each, torch.Generator))]


def _numpy() -> Any:
    """Return numpy's random module if it has been imported."""
    return sys.modules.get("numpy.random")


@contextmanager
def _left_as_it_was(layer: nn.Module) -> Iterator[None]:
    """Undo the effects of calls in the block: modes, tensors, attributes, and random states."""
    attributes = [(module, dict(vars(module))) for module in layer.modules()]
    tensors = [each for module in layer.modules() for each in (module._parameters, module._buffers)]
    held = [(each, dict(each)) for each in tensors]
    buffers = [(each, each.clone()) for each in layer.buffers()]
    states = [(each, each.get_state()) for each in _generators(layer)]
    drawn, numpy = random.getstate(), _numpy()
    drawn_by_numpy = numpy.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(drawn)
        if numpy:
            numpy.set_state(drawn_by_numpy)
        for generator, state in states:
            generator.set_state(state)
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)
        for now, named in held:
            now.clear()
            now.update(named)
        with torch.no_grad():
            for each, value in buffers:
                if not torch.equal(each, value):
                    each.copy_(value)
