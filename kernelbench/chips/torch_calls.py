"""torch's calls between kernels that do not run: their results have the right shape, and cost nothing.

    with TorchCalls() as calls:
        y = torch.mm(a, b)        # zeros that no memory holds; nothing is computed
    calls.found                   # [TorchCall("mm", moved bytes, FLOPs, "fp32")]

Shapes come from torch's meta kernels. What has none, or returns numbers to Python, runs as it is.
"""

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from kernelwright.kernelbench.chips.torch_call import TorchCall

_LARGE = 1 << 16  # bytes, from which zeros are memory that is mapped when it is written
_MOST_CALLS = 4096
_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.int8: "int8"}
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "_to_copy"}


class TorchCalls(TorchDispatchMode):
    """Mode that records torch's calls instead of computing them. `found`: those that launch kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[TorchCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((args, kwargs)))
        if func.is_view or not _fits(func, given):
            return func(*args, **kwargs)
        try:
            shaped = func(*tree_map(_meta, args), **{k: _meta_keyword(k, v) for k, v in kwargs.items()})
        except Exception:  # noqa: BLE001 - it has no meta kernel, or asks for values
            return func(*args, **kwargs)
        made = tree_map(_zeros, shaped)
        if func._schema.is_mutable:
            made = _mutated(func, args, kwargs, made)
        self._note(func, given, list(_tensors(made)), args, kwargs, shaped)
        return made

    def _note(
        self, func: Any, given: list[torch.Tensor], made: list[torch.Tensor], args: Any, kwargs: Any, out: Any
    ) -> None:
        name = func.overloadpacket.__name__
        if name in _FREE - {"_to_copy"} or len(self.found) >= _MOST_CALLS:
            return
        storages = {t.untyped_storage().data_ptr(): t.numel() * t.element_size() for t in (*given, *made)}
        flops = 0
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            flops = int(formula(*args, **kwargs, out_val=out))
        elif "scaled_dot_product" in name and len(given) >= 3:
            query, key = given[0].shape, given[1].shape
            flops = 4 * math.prod(query) * key[-2]
        precision = _PRECISIONS.get(given[0].dtype, "fp32") if given else "fp32"
        self.found.append(TorchCall(name[:100], sum(storages.values()), flops, precision))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _fits(func: Any, given: Sequence[torch.Tensor]) -> bool:
    """Return True for what can be replaced: dense tensors, whose values Python does not get."""
    plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided for t in given)
    returns = [str(each.type) for each in func._schema.returns]
    return (
        plain
        and all("Tensor" in type_ for type_ in returns)
        and torch.Tag.data_dependent_output not in func.tags
    )


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")


def _meta_keyword(name: str, value: Any) -> Any:
    return torch.device("meta") if name == "device" else tree_map(_meta, value)


def _zeros(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    span = (
        1 + sum((n - 1) * s for n, s in zip(value.size(), value.stride(), strict=True))
        if value.numel()
        else 0
    )
    return unwritten(span, value.dtype).as_strided(value.size(), value.stride())


def unwritten(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory until they are written."""
    size = elements * dtype.itemsize
    if size < _LARGE:
        return torch.zeros(elements, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype, count=elements)


def _mutated(func: Any, args: Sequence[Any], kwargs: dict[str, Any], made: Any) -> Any:
    """Return the arguments that an operator writes to, for what it returns of them."""
    written = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[number] if number < len(args) else kwargs.get(argument.name))
    returns = func._schema.returns
    aliased = [each.alias_info is not None for each in returns]
    if not any(aliased):
        return made
    if len(returns) == 1:
        return written[0]
    left = iter(written)
    return tuple(next(left) if alias else value for alias, value in zip(aliased, made, strict=True))
