"""What compute-sanitizer looks at: loads a candidate and calls it twice on random inputs.

Given to Python as text, for a candidate may not read the evaluator; so it needs torch alone.
"""

import importlib.util
import json
import os
import pickle
import sys
from typing import Any

import torch
from torch.utils import _pytree as pytree


def random_tensor(dtype: str, shape: list[int], device: str) -> torch.Tensor:
    """Normals; of integers only zeros are surely legal."""
    kind = getattr(torch, dtype)
    make = torch.randn if kind.is_floating_point or kind.is_complex else torch.zeros
    return make(shape, dtype=kind, device=device)


def main(told: dict[str, Any]) -> None:
    """`told`: "path", "device", "dtype", "layout", and "setup": a descriptor of what the oracle wrote."""
    with os.fdopen(told["setup"], "rb") as file:
        file.seek(0)
        setup = pickle.load(file)
    spec = importlib.util.spec_from_file_location("candidate", told["path"])
    assert spec is not None and spec.loader is not None
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(setup["seed"])
    torch.set_grad_enabled(False)
    dtype = getattr(torch, told["dtype"])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setup["lane"] == "tf32"
    model = module.ModelNew(*setup["init"]).to(device=told["device"], dtype=dtype)
    tensors = iter([random_tensor(dtype, shape, told["device"]) for dtype, shape, _ in told["layout"]])
    leaves = [next(tensors) if is_tensor else value for is_tensor, value in setup["leaves"]]
    inputs = pytree.tree_unflatten(leaves, setup["spec"])
    for _ in range(2):
        model(*inputs)
    if told["device"] != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
