"""Turning source text into a live model inside a worker, and moving weights into it."""

import contextlib
import functools
import importlib.util
import io
import operator
import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
import torch
from torch import nn

from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.matching import (
    Matching,
    Source,
    comparable,
    is_constant,
    order_of,
)
from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault, described, for_device

# What floating inputs and weights are cast to in each precision; None: they stay what the task makes them.
DTYPES = {
    "task": None,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_SAMPLED = 16  # elements of a weight that tell whether both constructors drew it alike


def import_source(source: str, name: str, folder: Path) -> ModuleType:
    """Execute `source` as module `name` from a real file, as inspect.getsource (and Triton) want it.

    A candidate's is there already, written by the referee.
    """
    path = folder / f"{name}.py"
    if not path.exists() or path.read_bytes() != source.encode():
        path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def import_task(source: str, device: torch.device, folder: Path) -> ModuleType:
    """Execute a task as module `reference`; "cuda" in it means `device`."""
    return import_source(for_device(source, device), "reference", folder)


def seed_device(seed: int, device: torch.device) -> None:
    """torch.manual_seed for this device and the CPU alone; that one spends a millisecond on a traceback."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()  # before it there are no generators
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@contextlib.contextmanager
def constructor_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch, NumPy and Python alike for the constructors of both sides.

    Afterwards those of NumPy and Python are unlike any that the seed gives.
    """
    seed_device(seed, device)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.seed()
        np.random.seed()


def to_device(model: nn.Module, precision: str, device: torch.device) -> nn.Module:
    """Return the model in the dtype of `precision`, on `device`; for "tf32" with TF32 products."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return model.to(device=device, dtype=DTYPES[precision])


def to_precision(value: Any, precision: str, device: torch.device | None = None) -> Any:
    """Floating tensors in the dtype of the precision, all tensors on `device`; what is none, as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_floating_point():
        return value.to(device=device)
    return value.to(device=device, dtype=DTYPES[precision]).requires_grad_(value.requires_grad)


def pickled(arguments: Sequence[Any]) -> bytes:
    """Init arguments for another process, which may not have the task's module. Raises TaskFault."""
    for position, argument in enumerate(arguments):
        try:
            _Arguments(io.BytesIO(_dumped(argument)), None).load()
        except Exception as error:  # noqa: BLE001 - pickle raises what it likes
            raise TaskFault(
                f"has a get_init_inputs whose item {position} ({described([argument])}) cannot be given to a "
                f"candidate: {error}",
                "give numbers, strings, tensors, functions of torch, or objects of a class that hold such",
            ) from None
    return _dumped(list(arguments))


def dump(value: Any, file: IO[bytes]) -> None:
    """Pickle, tensors of eight-bit floats included; to be read by any Python with torch."""
    _Pickler(file).dump(value)


def _dumped(value: Any) -> bytes:
    buffer = io.BytesIO()
    dump(value, buffer)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """torch's own pickles of tensors in formats without a storage class fail to load (2.13)."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and is_eight_bit_float(value.dtype):
            raw = value.detach().cpu().contiguous().view(torch.uint8).clone()
            return torch.Tensor.view, (raw, value.dtype)
        return NotImplemented


def unpickled(arguments: bytes, module: ModuleType) -> list[Any]:
    """Objects that `pickled` wrote, for `module`.

    Objects of the task's classes become objects of the module's classes of these names, or if it has none, of
    classes that have their attributes only.
    """
    found = _Arguments(io.BytesIO(arguments), module).load()
    assert isinstance(found, list)
    return found


class _Arguments(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, module: ModuleType | None) -> None:
        super().__init__(file)
        self._module = module

    def find_class(self, module: str, name: str) -> Any:
        if module != "reference" or (self._module is not None and self._module.__name__ == "reference"):
            return super().find_class(module, name)
        if self._module is None:  # in the oracle, to see whether it would work elsewhere
            if not isinstance(super().find_class(module, name), type):
                raise pickle.PicklingError(f"{name} is a function of the task's own")
            return type(name, (), {})
        return getattr(self._module, name, None) or type(name, (), {})


def load_weights(
    model: nn.Module,
    state: Mapping[str, torch.Tensor],
    weights: Collection[str],
    sampled: Mapping[str, torch.Tensor],
    drawn: Callable[[], Mapping[str, torch.Tensor]],
) -> tuple[str, list[str]]:
    """Give `model` the reference's weights; says how they were matched, and which were left over.

    `weights`: which of them must be matched; others are buffers that hold constants or statistics, or
    nothing depends on them. `drawn`: what the reference's constructor drew; `sampled`: the `samples` of that.

    A model that takes part in `load_state_dict` (its own method or hooks, which may rename, join or pack
    weights) gets them so, if that takes all of them: by name. Otherwise
    "name": every one by its name. "value": the rest by what the constructors drew from one seed; so
    transposed, joined and split ones too, and a square one that is kept transposed under its name. "shape":
    what is left in the order of definition, by equal shape. "replay": a weight was left over, so the model
    keeps what its own constructor drew. "missing": the model has not even room for what was left over.
    Buffers that find no match are left: in train mode the running statistics of a norm change nothing.
    """
    if name := lazy_module(model):
        raise TypeError(
            f"{name} has no weights before its first call; give a lazy module its sizes in the constructor"
        )
    if _loads_itself(model):
        with contextlib.suppress(Exception):  # then as if it did not
            model.load_state_dict(dict(state))
            return "name", []
    with torch.no_grad():
        own = model.state_dict(keep_vars=False)
        named = [name for name, value in own.items() if _shape(state.get(name)) == value.shape]
        turned = [name for name in named if name in sampled and not _has(own[name], sampled[name])]
        rest = [name for name, value in state.items() if _shape(own.get(name)) != value.shape]
        free = [name for name in own if name not in named]
        known = drawn() if turned or (rest and free) else {}
        sources: dict[str, Source] = {}
        for name in turned:
            if (order := order_of(known[name], own[name])) is not None:
                sources[name] = functools.partial(_turned, name=name, order=order)
        if rest and free:
            matching = Matching({name: known[name] for name in rest})
            sources |= _by_value(matching, model, {name: own[name] for name in free}, weights, rest)
            rest = [name for name in rest if name not in matching.used]
            free = [name for name in free if name not in sources]
        left, by_shape = [], False
        for name in rest:
            equal = next((n for n in free if own[n].shape == state[name].shape), None)
            if equal is not None:
                free.remove(equal)
                sources[equal] = operator.itemgetter(name)
                by_shape = True
            elif name in weights:
                left.append(name)
        if left:
            room = sum(own[name].numel() for name in free)
            return "replay" if room >= sum(state[name].numel() for name in left) else "missing", left
        for name in named:
            if name not in sources:
                own[name].copy_(state[name])
        values = {name: comparable(value) for name, value in state.items()} if sources else {}
        for name, source in sources.items():
            own[name].copy_(source(values))
    return "shape" if by_shape else "value" if sources else "name", []


def _by_value(
    matching: Matching,
    model: nn.Module,
    free: Mapping[str, torch.Tensor],
    weights: Collection[str],
    names: Collection[str],
) -> dict[str, Source]:
    """Find sources of the model's tensors in `free`; equal ones go to trained tensors first."""
    parameters = dict(model.named_parameters())
    trained = [name for name in free if name in parameters and parameters[name].requires_grad]
    frozen = [name for name in free if name in parameters]
    found: dict[str, Source] = {}
    for mine, theirs in ((trained, weights), (frozen, weights), (free, names)):
        wanted = {name: free[name] for name in mine if name not in found}
        found |= matching.sources(wanted, [name for name in names if name in theirs])
    # Two copies of one weight, say. A buffer of zeros is rather room for results.
    wanted = {n: v for n, v in free.items() if n not in found and (n in parameters or not _constant(v))}
    return found | matching.sources(wanted, names, again=True)


def _constant(value: torch.Tensor) -> bool:
    return not value.numel() or is_constant(comparable(value))


def samples(drawn: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return some elements of those weights that have the same shape when they are transposed."""
    found = {}
    for name, value in drawn.items():
        sizes = [size for size in value.shape if size > 1]
        if len(set(sizes)) < len(sizes):
            found[name] = _sample(value)
    return found


def _sample(value: torch.Tensor) -> torch.Tensor:
    return comparable(value.detach().reshape(-1)[:: -(-value.numel() // _SAMPLED)]).clone()


def _has(value: torch.Tensor, sample: torch.Tensor) -> bool:
    """Return True if `sample` was taken from `value`, or from a tensor that `value` was cast from."""
    mine = _sample(value)
    return bool((sample.to(mine.dtype) == mine).all())


def _turned(state: Mapping[str, torch.Tensor], name: str, order: tuple[int, ...]) -> torch.Tensor:
    return state[name].permute(order)


def lazy_module(model: nn.Module) -> str:
    """Return the name and class of one whose weights do not exist yet, if there is one."""
    for name, module in model.named_modules():
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(nn.parameter.is_lazy(tensor) for tensor in tensors):
            return f"{name} ({type(module).__name__})" if name else type(module).__name__
    return ""


def _loads_itself(model: nn.Module) -> bool:
    """Return True if the candidate's own code takes part in `load_state_dict`, and not only torch's."""
    for module in model.modules():
        if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
            return True
        for name in ("load_state_dict", "_load_from_state_dict"):
            if not getattr(type(module), name).__module__.startswith("torch."):
                return True
    return False


def _shape(tensor: torch.Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape
