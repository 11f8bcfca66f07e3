"""Sizes of a task's calls, without its memory: the model is made and called on tensors that hold no data.

A worker runs this, since a task's code does. What an operator takes inside itself, a convolution's workspace
say, does not show.

>>> with LiveBytes() as memory:  # 4 KiB each, of which two exist at a time
...     x = torch.ones(1024)
...     for _ in range(3):
...         x = x + 1
>>> memory.most_bytes
8192
"""

import math
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.kernelbench.evaluator.memory.layout import SlotLayout, TensorLayout
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.reference import slices
from kernelwright.kernelbench.evaluator.reference.loading import DTYPES, import_task, to_precision
from kernelwright.kernelbench.evaluator.reference.outputs import flattened
from kernelwright.kernelbench.evaluator.reference.task_format import constructor_inputs, inputs_of

_CPU = torch.device("cpu")
# Modules that, while they train, have samples depend on each other or draw random numbers.
_MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class _Zeros(TorchDispatchMode):
    """Numbers that are read from tensors without data are zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            return 0.0 if args[0].is_floating_point() else 0


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made in the block have at a time; `known` tensors do not count."""

    def __init__(self, known: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.most_bytes = self._bytes = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self._bytes += storage.nbytes()
            self.most_bytes = max(self.most_bytes, self._bytes)
            weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._bytes -= size


def sizes_of(source: str, precision: str) -> dict[str, Any]:
    """Return the arguments of `budget.CallSizes` for a task. Whatever its code raises is raised."""
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), _Zeros():
        module = import_task(source, _CPU, Path.cwd())
        model = module.Model(*constructor_inputs(module.get_init_inputs(), module.Model))
        _cast(model, DTYPES[precision])
        inputs = inputs_of(module.get_inputs(), model)
        inputs = pytree.tree_map(lambda value: to_precision(value, precision, _CPU), inputs)
        given = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        weights = list(model.state_dict().values())
        with LiveBytes([*given, *weights]) as memory:
            outputs = flattened(model(*inputs), _CPU)
        layouts = [TensorLayout.of(tensor) for tensor in given]
        results = [math.prod(output.shape) * output.element_size() for output in outputs]
        floats = [t for t in (*given, *model.parameters()) if t.is_floating_point()]
        return {
            "inputs": SlotLayout(tuple(layouts)).slot_bytes,
            "outputs": results,
            "weights": sum(tensor.numel() * tensor.element_size() for tensor in weights),
            "live": max(memory.most_bytes, sum(results)),
            "largest": max([*results, *(layout.element_bytes for layout in layouts)]),
            "slices": _slices(model, inputs, outputs),
            "widening": 4 if any(tensor.element_size() == 2 for tensor in floats) else 2,
        }


def _slices(model: nn.Module, inputs: Any, outputs: Sequence[torch.Tensor]) -> int:
    """Number of slices that a call can be made in by its shapes; the oracle compares values, too."""
    batch = slices.batch_of(outputs)
    if any(isinstance(module, _MIXING) and module.training for module in model.modules()):
        return 1
    if batch < 2 or not all(output.is_floating_point() for output in outputs):
        return 1
    leaves, spec = pytree.tree_flatten(inputs)
    part = next(slices.slices_of(batch))
    tensors = iter(slices.cut([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], batch, part))
    given = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    try:
        found = flattened(model(*pytree.tree_unflatten(given, spec)), _CPU)
    except Exception:  # noqa: BLE001 - it takes calls of its own size alone
        return 1
    fits = all(a.shape[1:] == b.shape[1:] for a, b in zip(found, outputs, strict=False))
    return slices.SLICES if fits and slices.batch_of(found) == part.stop else 1


def _cast(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Cast floating weights and buffers; Module.to does not take parameters without data."""
    known: dict[int, torch.Tensor] = {}  # those that modules share
    for module in model.modules() if dtype is not None else ():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None and tensor.is_floating_point():
                    wide = known.setdefault(id(tensor), tensor.to(dtype))
                    table[name] = nn.Parameter(wide) if isinstance(tensor, nn.Parameter) else wide


def serve(channel: Channel) -> None:
    """Answer with the sizes of one task after the other, or with an "error"."""
    while True:
        message, _ = channel.receive_json()
        try:
            answer: dict[str, Any] = sizes_of(message["source"], message["precision"])
        except Exception as error:  # noqa: BLE001 - task code may raise anything
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        channel.send_json(answer)
