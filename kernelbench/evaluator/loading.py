"""Turning source text into a live model inside a worker, and moving weights into it."""

import importlib.util
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

LANES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def import_source(source: str, name: str, folder: Path) -> ModuleType:
    """Execute `source` as module `name` from a real file, as inspect.getsource (and Triton) want it.

    A candidate's is there already, written by the judge.
    """
    path = folder / f"{name}.py"
    if not path.exists():
        path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


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


def to_lane(value: Any, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """Floating tensors cast to the lane's dtype, all tensors moved to `device`; what is none, as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device=device, dtype=dtype if value.is_floating_point() else None)


def load_weights(model: nn.Module, state: Mapping[str, torch.Tensor], parameters: Collection[str]) -> str:
    """Give `model` the reference's weights; says how they were matched. `parameters`: which of them must be.

    "name": every one by its name. "shape": the rest in the order of definition, by equal shape.
    "replay": a parameter was left over (fused or split ones), so the model keeps what its constructor
    drew from the seed that the reference's constructor drew from. "missing": the model has not even
    room for what was left over. Buffers that find no match are left: in train mode the running
    statistics of a norm change nothing.
    """
    with torch.no_grad():
        own = model.state_dict(keep_vars=False)
        rest = [name for name, value in state.items() if _shape(own.get(name)) != value.shape]
        free = [name for name in own if _shape(state.get(name)) != own[name].shape]
        matches = {name: name for name in own if name not in free}
        left = []
        for name in rest:
            equal = next((n for n in free if own[n].shape == state[name].shape), None)
            if equal is not None:
                free.remove(equal)
                matches[equal] = name
            elif name in parameters:
                left.append(name)
        if left:
            room = sum(own[name].numel() for name in free)
            return "replay" if room >= sum(state[name].numel() for name in left) else "missing"
        for target, origin in matches.items():
            own[target].copy_(state[origin])
    return "shape" if rest else "name"


def _shape(tensor: torch.Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape
