"""Code that makes tensors like given ones: with their shape, dtype, strides, and numbers of their kind."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from kernelwright.kernelbench.errors import UsageError

_SEED = 0
_WRITTEN_OUT = 256  # elements of a buffer whose numbers are
_STATISTICS = 1 << 22  # elements that mean and spread are taken of
_Shape: TypeAlias = tuple[int, ...]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def input_like(tensor: Tensor, name: str, at: Tensor | None = None) -> str:
    """Return code that draws an input like this one; with the shape of `at`, the same input at other sizes.

    Raises UsageError for NaN and infinities.
    """
    other = tensor if at is None else at

    def code(value: Tensor, shape: _Shape) -> str:
        if at is not None and not value.is_floating_point() and _counts(tensor) and _counts(at):
            value = at.flatten()  # positions: below the number of them
        return _mask(value, shape) or _drawn(value, shape, name, spread=1.0)

    return _laid_out(tensor, code, other.shape)


def resized(tensor: Tensor, shape: Sequence[int], name: str) -> Tensor:
    """Return a tensor like this one of another shape; the same tensor if it has that."""
    if tuple(shape) == tuple(tensor.shape):
        return tensor
    if _counts(tensor):
        place = next(p for p, length in enumerate(tensor.shape) if length == int(tensor.max()) + 1)
        return (
            (torch.arange(math.prod(shape), device=tensor.device) % shape[place])
            .to(tensor.dtype)
            .reshape(shape)
        )
    like = torch.empty(tuple(shape), dtype=tensor.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        made: Tensor = eval(input_like(tensor, name, like), {"torch": torch})  # our own text
    return made.to(tensor.device)


def _counts(tensor: Tensor) -> bool:
    """Return True for integers from 0 to below the length of an axis."""
    is_integer = tensor.dtype in _INTEGERS and tensor.numel() > 0
    return is_integer and int(tensor.min()) == 0 and int(tensor.max()) + 1 in tensor.shape


def parameter_like(tensor: Tensor, name: str) -> str:
    """Return code that draws a parameter like this one, or fills it with its one number."""
    return _laid_out(tensor, lambda value, shape: _filled(value) or _drawn(value, shape, name))


def buffer_like(tensor: Tensor, name: str) -> str:
    """Return code for a buffer: its own numbers, where they are few or follow a rule, else ones like them."""

    def code(value: Tensor, shape: _Shape) -> str:
        return _filled(value) or _mask(value, shape) or _ruled(value) or _drawn(value, shape, name)

    return _laid_out(tensor, code)


def _laid_out(tensor: Tensor, code: Callable[[Tensor, _Shape], str], shape: _Shape = ()) -> str:
    """Return code for a tensor with the strides of this one, if it is dense in some order of dimensions.

    `shape`: of what is drawn, where it is not the tensor's own.
    """
    value, shape = tensor.detach(), tuple(shape) or tuple(tensor.shape)
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    dense = value.permute(order)
    if value.is_contiguous() or not dense.is_contiguous():
        return code(value.contiguous(), shape)
    back = [order.index(d) for d in range(value.dim())]
    drawn = code(dense, tuple(shape[d] for d in order))
    return (
        f"{f'({drawn})' if ' ' in drawn.rpartition(')')[2] else drawn}.permute({', '.join(map(str, back))})"
    )


def _filled(value: Tensor) -> str:
    if not value.numel() or not bool((value == value.flatten()[0]).all()):
        return ""
    number = value.flatten()[0].item()
    shape, dtype = _shape(value), _dtype(value)
    if value.is_floating_point() and number in (0, 1):
        return f"torch.{'ones' if number else 'zeros'}({', '.join(map(str, value.shape)) or '()'}{dtype})"
    return f"torch.full({shape}, {_number(number)}{dtype or _always(value)})"


def _ruled(value: Tensor) -> str:
    """Return code of exactly these numbers, if it is short; else ""."""
    if value.dtype in _INTEGERS and value.numel() > 2:
        flat = value.flatten().long()
        start, step = int(flat[0]), int(flat[1] - flat[0])
        stop = start + step * flat.numel()
        if step and bool((flat == torch.arange(start, stop, step, device=flat.device)).all()):
            shape = "" if value.dim() == 1 else f".reshape({_shape(value)})"
            return f"torch.arange({start}, {stop}, {step}{_dtype(value)}){shape}"
    if value.numel() <= _WRITTEN_OUT:
        return f"torch.tensor({_literal(value.tolist())}{_always(value)})"
    return ""


def _mask(value: Tensor, form: _Shape) -> str:
    """Return code of a causal mask: True or 0 up to the diagonal, or above it; else ""."""
    if value.dim() < 2 or value.shape[-2] < 2 or value.shape[-1] < 2:
        return ""
    shape = repr(form)
    ones = torch.ones(value.shape, dtype=torch.bool, device=value.device)
    if value.dtype is torch.bool:
        for triangle, part in ((".tril()", ones.tril()), (".triu(1)", ones.triu(1))):
            if bool((value == part).all()):
                return f"torch.ones({shape}, dtype=torch.bool){triangle}"
    elif value.is_floating_point():
        above, zero = ones.triu(1), value == 0
        masked = value[above]
        if bool((zero == ~above).all()) and bool((masked == masked[0]).all()):
            return f"torch.full({shape}, {_number(masked[0].item())}{_dtype(value)}).triu(1)"
    return ""


def _drawn(value: Tensor, shape: _Shape, name: str, spread: float = 0.0) -> str:
    """Return code that draws numbers of this kind. `spread`: standard deviation where they are all equal."""
    sizes, dtype = ", ".join(map(str, shape)) or "()", _dtype(value)
    some = value.flatten()[:_STATISTICS]
    if value.dtype is torch.bool:
        share = float(some.float().mean()) if value.numel() else 0.5
        return f"torch.rand({sizes}) < {_short(share if 0 < share < 1 else 0.5)}"
    if value.dtype in _INTEGERS:
        least, most = (int(some.min()), int(some.max())) if value.numel() else (0, 1)
        first, ignored = min(0, least), some[some < 0]
        marked = least < 0 <= most and bool((ignored == least).all())  # as -100 marks what a loss leaves out
        code = f"torch.randint({0 if marked else first}, {max(most, first) + 1}, {shape}{_dtype(value, int)})"
        if marked:
            code += f".masked_fill(torch.rand({sizes}) < {_short(ignored.numel() / some.numel())}, {least})"
        return code
    if value.is_complex():
        return f"torch.randn({sizes}{dtype})"
    if not value.is_floating_point() or value.element_size() == 1:
        raise UsageError(f"{name} is {value.dtype}, of which no numbers can be drawn", "write a task file")
    if not value.numel():
        return f"torch.empty({sizes}{dtype})"
    numbers = some.double()
    if not bool(numbers.isfinite().all()):
        raise UsageError(
            f"{name} holds NaN or infinity", "pass finite numbers; a mask as booleans, or a causal one"
        )
    low, high = float(numbers.min()), float(numbers.max())
    if low == high and spread:
        return f"torch.randn({sizes}{dtype})"
    if low >= 0 or high <= 0:
        code = f"torch.rand({sizes}{dtype})"
        if 0 <= low < 0.05 and 0.95 < high <= 1:
            return code
        return f"{code} * {_short(high - low)}{_added(low)}"
    deviation, mean = float(numbers.std()), float(numbers.mean())
    code = f"torch.randn({sizes}{dtype})"
    # Of an input's mean and deviation, which are taken for 0 and 1 where they may be.
    noise = 4 / math.sqrt(numbers.numel()) if spread else 0.0
    if abs(deviation - 1) > max(0.1, noise):
        code += f" * {_short(deviation)}"
    return code + (_added(mean) if abs(mean) > max(0.2, noise) * deviation else "")


def _added(number: float) -> str:
    return f" {'+' if number >= 0 else '-'} {_short(abs(number))}"


def _shape(value: Tensor) -> str:
    return repr(tuple(value.shape))


def _dtype(value: Tensor, usual: type = float) -> str:
    known = torch.float32 if usual is float else torch.int64
    return "" if value.dtype is known else _always(value)


def _always(value: Tensor) -> str:
    return f", dtype={value.dtype}"


def _literal(numbers: object) -> str:
    if isinstance(numbers, list):
        return f"[{', '.join(map(_literal, numbers))}]"
    return _number(numbers)


def _number(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _short(value: float) -> str:
    return repr(float(f"{value:.3g}"))
