"""Float64 runs of a reference that is written for another precision, with the random numbers of its own run.

A model whose weights are float64 still makes float32 zeros, casts to bfloat16, asks a softmax for float32
or runs under autocast. Within `Exact` all of these stay float64:

    state = torch.zeros(8, 48)                  # float64
    scores = (q @ k.mT).float() / 8             # float64, though `scores.dtype` says float32
    p = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v

Tensors go on saying the dtype that they have in the task's own precision, so that what asks for it takes
the same branches. Casts to eight-bit floats keep their rounding, which is part of what the function is.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

LEAST_ULPS = 8  # of the expected value, which every budget of float32 allows

_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
_COMPLEX = {real: value for value, real in _REAL.items()} | {torch.bfloat16: torch.complex64}
_CASTS = {torch.Tensor.to, torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.double,
          torch.Tensor.type, torch.Tensor.type_as}  # fmt: skip
_TARGETS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16,
            torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.double: torch.float64}  # fmt: skip
_BY_NAME = {"torch.FloatTensor": torch.float32, "torch.HalfTensor": torch.float16,
            "torch.BFloat16Tensor": torch.bfloat16, "torch.DoubleTensor": torch.float64}  # fmt: skip
_DTYPE = torch.Tensor.dtype.__get__
_OWN = "_own_dtype"  # attribute of a float64 tensor: its dtype in the task's own precision


class ReplayFailed(Exception):  # noqa: N818 - what happened
    """The float64 run does not draw what the run in the task's own precision drew."""


def is_eight_bit_float(dtype: torch.dtype) -> bool:
    """Return True for a format that only stores numbers: float8_e4m3fn, float8_e5m2 and the like."""
    return dtype.is_floating_point and dtype.itemsize == 1


def is_discrete(dtype: torch.dtype) -> bool:
    """Return True for a type whose values are right or wrong, none nearly right: all but wider floats."""
    return not (dtype.is_floating_point or dtype.is_complex) or is_eight_bit_float(dtype)


def own_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Dtype that a tensor of a float64 run has in the task's own precision."""
    own = getattr(tensor, _OWN, None)
    return own if isinstance(own, torch.dtype) else _DTYPE(tensor)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new float64 (complex128) tensor that remembers its dtype; integers as they are."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return remember(tensor.detach().to(dtype, copy=True), own_dtype(tensor))


def remember(tensor: torch.Tensor, own: torch.dtype) -> torch.Tensor:
    """Mark a float64 tensor as being of dtype `own`; return the tensor itself."""
    setattr(tensor, _OWN, own)
    return tensor


class RecordedDraws(OperatorMode):
    """Keeps what torch's generators give, in order, to be given again in an `Exact` run."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.generators = generators
        self.taken: list[tuple[str, Any]] = []  # operator, what it returned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        asked = [*self.generators, *_generators(args, kwargs)]
        before = [generator.get_state() for generator in asked]
        result = func(*args, **kwargs)
        same = (torch.equal(old, new.get_state()) for old, new in zip(before, asked, strict=True))
        if not all(same):  # attention without dropout could have drawn, and has not
            self.taken.append((func._opname, pytree.tree_map_only(torch.Tensor, torch.clone, result)))
        return result


def _generators(args: Any, kwargs: Any) -> list[torch.Generator]:
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)]


class Exact:
    """A context in which torch computes in float64. `draws`: of the run in the task's own precision.

    Raises ReplayFailed at its end where these were not all asked for.
    """

    def __init__(self, draws: Iterable[tuple[str, Any]] = ()) -> None:
        self._operators = _Float64Operators(list(draws))
        self._modes = (self._operators, _OwnDtypes())

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)
        torch.set_default_dtype(self._default)
        if error is None and self._operators.draws:
            name = self._operators.draws[0][0]
            raise ReplayFailed(f"in float64 forward does not draw the random numbers ({name}) that it draws")


class _OwnDtypes(TorchFunctionMode):
    """Answers for a tensor's dtype, and casts by that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _DTYPE:
            return own_dtype(args[0])
        if func == torch.Tensor.element_size:
            return own_dtype(args[0]).itemsize
        if func == torch.Tensor.type and len(args) == 1 and not kwargs:
            names = {dtype: name for name, dtype in _BY_NAME.items()}
            return names.get(own_dtype(args[0])) or func(*args)
        if func not in _CASTS or not args[0].is_floating_point():
            return func(*args, **kwargs)
        target = _target(func, args, kwargs)
        if target is None or not target.is_floating_point:
            return func(*args, **kwargs)
        if target == own_dtype(args[0]) and func in _TARGETS:
            return args[0]
        if target == own_dtype(args[0]) and len(args) == 2 and not kwargs:
            return args[0]
        result = func(*args, **kwargs)
        return remember(result.clone() if result is args[0] else result, target)


def _target(func: Any, args: Any, kwargs: Any) -> torch.dtype | None:
    """Return the dtype that a cast asks for; None for one to a device alone."""
    if func in _TARGETS:
        return _TARGETS[func]
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, torch.dtype):
            return value
        if isinstance(value, torch.Tensor):
            return own_dtype(value)
        if isinstance(value, str) and value in _BY_NAME:
            return _BY_NAME[value]
    return None


class _Float64Operators(OperatorMode):
    def __init__(self, draws: list[tuple[str, Any]]) -> None:
        super().__init__()
        self.draws = draws
        self._taken_in: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # tensors from elsewhere

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        asked = next((d for d in (*args, *kwargs.values()) if isinstance(d, torch.dtype)), None)
        if self.draws and func._opname == self.draws[0][0]:
            return self._drawn(func, args, self.draws.pop(0)[1])
        if func._opname == "view" and asked is not None:
            return self._reinterpreted(func, args, asked)
        wide_args, wide_kwargs = pytree.tree_map(self._wide, (args, kwargs))
        if asked is not None and is_eight_bit_float(asked):
            rounded = args[0].to(asked) if given else func(*args, **kwargs)
            return remember(rounded.double(), asked)
        try:
            result = func(*wide_args, **wide_kwargs)
        except RuntimeError:
            if func._schema.is_mutable or not given:
                raise
            # There is no such kernel for float64: what it computes is taken as exact.
            narrow = pytree.tree_map_only(torch.Tensor, _narrow, (wide_args, kwargs))
            result = pytree.tree_map_only(torch.Tensor, widened, func(*narrow[0], **narrow[1]))
        return self._named(func, result, given, asked)

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _WIDE.get(value, value)
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype not in _WIDE and not is_eight_bit_float(value.dtype):
            return value
        known = self._taken_in.get(id(value))
        if known is None:
            known = self._taken_in[id(value)] = value, widened(value)
        return known[1]

    def _drawn(self, func: Any, args: Any, result: Any) -> Any:
        """Repeat the operator in the task's own precision and return its result."""
        if func._opname == "native_dropout":
            mask = result[1]
            return self._wide(args[0]) * mask / (1 - args[1]), mask
        wide = pytree.tree_map_only(torch.Tensor, lambda t: widened(t.clone()), result)
        if func._schema.is_mutable and isinstance(wide, torch.Tensor):
            return self._wide(args[0]).copy_(wide)
        return wide

    def _reinterpreted(self, func: Any, args: Any, asked: torch.dtype) -> Any:
        """Return the bits of a tensor as another dtype: those that it has in the task's own precision."""
        result = func(_narrow(args[0]), asked)
        return widened(result)

    def _named(self, func: Any, result: Any, given: list[torch.Tensor], asked: torch.dtype | None) -> Any:
        """Results with the dtype that they have in the task's own precision."""
        for leaf in pytree.tree_leaves(result):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype not in (torch.float64, torch.complex128):
                continue
            if func._schema.is_mutable and any(leaf is tensor for tensor in given):
                continue
            own = asked if asked is not None else _promoted(given)
            if own is None or not (own.is_floating_point or own.is_complex):
                own = torch.float32
            table = _COMPLEX if leaf.is_complex() else _REAL
            remember(leaf, table.get(own, own))
        return result


def _promoted(given: Sequence[torch.Tensor]) -> torch.dtype | None:
    """Dtype as torch promotes: of tensors with dimensions, or if there are none of single numbers."""
    floats = [t for t in given if t.is_floating_point() or t.is_complex()]
    own: torch.dtype | None = None
    for tensor in [t for t in floats if t.dim()] or floats:
        mine = own_dtype(tensor)
        if is_eight_bit_float(mine):
            continue
        own = mine if own is None else torch.promote_types(own, mine)
    return own


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(own_dtype(tensor))
