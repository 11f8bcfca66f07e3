"""Uninitialized memory: the result of torch.empty, until a kernel or an operator writes it."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_EMPTY = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}


class _Fresh(TorchDispatchMode):
    """Mode that tracks the storages created by operators, and their unwritten bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.made: dict[int, int] = {}  # sizes of storages, by their addresses

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.made |= sizes(tree_leaves(result))
        if func.overloadpacket in _EMPTY:
            storage = result.untyped_storage()
            self.written[storage.data_ptr()] = np.zeros(max(1, storage.nbytes()), np.uint8)
            return result
        if not any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns):
            self._forget(tree_leaves(result))  # memory of its own, or what it has written into
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info and argument.alias_info.is_write:
                self._forget(tree_leaves(value))
        return result

    def _forget(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.written.pop(value.untyped_storage().data_ptr(), None)


_watching: list[_Fresh] = []


@contextlib.contextmanager
def fresh_memory(nested: bool = False) -> Iterator[None]:
    """Report kernels in the block that read uninitialized memory.

    `nested`: use the memory of an enclosing block if there is one.
    """
    if _watching and nested:
        yield
        return
    mode = _Fresh()
    _watching.append(mode)
    try:
        with mode:
            yield
    finally:
        _watching.pop()


def sizes(values: Sequence[Any]) -> dict[int, int]:
    """Return the bytes of the storages of all tensors among the values, by address."""
    plain = (v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided)
    return {storage.data_ptr(): storage.nbytes() for storage in (v.untyped_storage() for v in plain)}


def made() -> dict[int, int]:
    """Return the sizes of storages that operators created in the block of `fresh_memory`."""
    return dict(_watching[-1].made) if _watching else {}


def unwritten(address: int) -> int:
    """Return the `written` map of the storage at this address."""
    bytes_ = _watching[-1].written.get(address) if _watching else None
    return 0 if bytes_ is None else int(bytes_.ctypes.data)


def written(tensor: torch.Tensor) -> int:
    """Return the address of a byte for each of the tensor's, 0 if unwritten; 0 if all are written."""
    storage = tensor.untyped_storage()
    at = unwritten(storage.data_ptr())
    return at + tensor.data_ptr() - storage.data_ptr() if at else 0
