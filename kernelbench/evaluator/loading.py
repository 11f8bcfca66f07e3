"""Turning source text into a live model inside a worker, and moving weights into it."""

import contextlib
import importlib.util
import io
import operator
import pickle
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelbench.evaluator.matching import Matching
from kernelbench.evaluator.task_format import TaskFault, described, for_device

# What floating inputs and weights are cast to in each precision; None: they stay what the task makes them.
LANES = {
    "task": None,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def import_source(source: str, name: str, folder: Path) -> ModuleType:
    """Execute `source` as module `name` from a real file, as inspect.getsource (and Triton) want it.

    A candidate's is there already, written by the judge.
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


def to_device(model: nn.Module, lane: str, device: torch.device) -> nn.Module:
    """The model in the lane's dtype on `device`, where products of fp32 are TF32 in that lane only."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = lane == "tf32"
    return model.to(device=device, dtype=LANES[lane])


def to_precision(value: Any, lane: str, device: torch.device | None = None) -> Any:
    """Floating tensors in the dtype of the lane, all tensors on `device`; what is none, as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device=device, dtype=LANES[lane] if value.is_floating_point() else None)


def pickled(arguments: Sequence[Any]) -> bytes:
    """Init arguments for another process, which may not have the task's module. Raises TaskFault."""
    for position, argument in enumerate(arguments):
        try:
            _Arguments(io.BytesIO(pickle.dumps(argument)), None).load()
        except Exception as error:  # noqa: BLE001 - pickle raises what it likes
            raise TaskFault(
                f"has a get_init_inputs whose item {position} ({described([argument])}) cannot be given to a "
                f"candidate: {error}",
                "give numbers, strings, tensors, functions of torch, or objects of a class that hold such",
            ) from None
    return pickle.dumps(list(arguments))


def unpickled(arguments: bytes, module: ModuleType) -> list[Any]:
    """What `pickled` made, for `module`: objects of the task's classes become objects of its own classes of
    these names, or if it has none, of classes that have their attributes only.
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
    drawn: Callable[[], Mapping[str, torch.Tensor]],
) -> str:
    """Give `model` the reference's weights; says how they were matched. `weights`: which of them must be;
    others are buffers that hold constants or statistics.

    A model that takes part in `load_state_dict` (its own method or hooks, which may rename, join or pack
    weights) gets them so, if that takes all of them: by name. Otherwise
    "name": every one by its name. "value": the rest by what the constructors drew from one seed, `drawn` by
    the reference's; so transposed, joined and split ones too. "shape": what is left in the order of
    definition, by equal shape. "replay": a weight was left over, so the model keeps what its own
    constructor drew. "missing": the model has not even room for what was left over. Buffers that find no
    match are left: in train mode the running statistics of a norm change nothing.
    """
    if _loads_itself(model):
        with contextlib.suppress(Exception):  # then as if it did not
            model.load_state_dict(dict(state))
            return "name"
    with torch.no_grad():
        own = model.state_dict(keep_vars=False)
        rest = [name for name, value in state.items() if _shape(own.get(name)) != value.shape]
        free = [name for name in own if _shape(state.get(name)) != own[name].shape]
        sources: dict[str, Callable[[Mapping[str, torch.Tensor]], torch.Tensor]] = {}
        used: set[str] = set()
        by_shape = False
        if rest and free:
            known, trained = drawn(), dict(model.named_parameters())
            for mine, theirs in (([n for n in free if n in trained], weights), (free, rest)):
                matching = Matching(
                    {name: known[name] for name in rest if name in theirs and name not in used}
                )
                sources |= matching.sources({name: own[name] for name in mine if name not in sources})
                used |= matching.used
            rest = [name for name in rest if name not in used]
            free = [name for name in free if name not in sources]
        left = []
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
            return "replay" if room >= sum(state[name].numel() for name in left) else "missing"
        for name, value in own.items():
            if _shape(state.get(name)) == value.shape:
                value.copy_(state[name])
        for name, source in sources.items():
            own[name].copy_(source(state))
    return "shape" if by_shape else "value" if sources else "name"


def _loads_itself(model: nn.Module) -> bool:
    """Whether the candidate's own code, and not only torch's, takes part in `load_state_dict`."""
    for module in model.modules():
        if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
            return True
        for name in ("load_state_dict", "_load_from_state_dict"):
            if not getattr(type(module), name).__module__.startswith("torch."):
                return True
    return False


def _shape(tensor: torch.Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape
