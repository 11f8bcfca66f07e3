"""Program that compute-sanitizer or a profiler observes: a candidate, called on random inputs.

It is passed to Python as text, for a candidate may not read the evaluator; so it needs torch alone.
"""

import importlib.util
import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_OF_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # as Kineto calls what ran there


def random_tensor(dtype: str, shape: list[int], device: str) -> torch.Tensor:
    """Draw normals; of integers only zeros are surely legal."""
    kind = getattr(torch, dtype)
    if kind.is_floating_point and kind.itemsize == 1:
        return torch.randn(shape, device=device).to(kind)
    make = torch.randn if kind.is_floating_point or kind.is_complex else torch.zeros
    return make(shape, dtype=kind, device=device)


def marked(call: Callable[[], object], told: dict[str, Any]) -> None:
    """Call between the marks at which a CUDA profiler begins and ends."""
    if told["device"] == "cpu":
        call()
        return
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def traced(call: Callable[[], object], told: dict[str, Any]) -> None:
    """Call under torch's profiler, slower the first time; the GPU's events go to the file "trace"."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = told["device"] != "cpu"
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU, *(on_gpu * [ProfilerActivity.CUDA])]) as profiler:
            call()
            if on_gpu:
                torch.cuda.synchronize()
    profiler.export_chrome_trace(told["trace"])
    with open(told["trace"], "r+") as file:  # noqa: PTH123 - without what this text need not import
        trace = json.load(file)
        events = [event for event in trace["traceEvents"] if event.get("cat") in _OF_GPU]
        file.seek(0)
        json.dump({"traceEvents": events}, file)
        file.truncate()


def main(told: dict[str, Any]) -> None:
    """Load the candidate and call it.

    `told`: "path", "device", "dtype" ("": the model's own), "layout", and "setup": a descriptor of the
    oracle's setup.

    "look": "marked" or "traced", if one more call is to be profiled.
    """
    with os.fdopen(told["setup"], "rb") as file:
        file.seek(0)
        setup = pickle.load(file)
    spec = importlib.util.spec_from_file_location("candidate", told["path"])
    assert spec is not None and spec.loader is not None
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(setup["seed"])
    torch.set_grad_enabled(False)
    dtype = getattr(torch, told["dtype"]) if told["dtype"] else None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setup["precision"] == "tf32"
    sys.modules.setdefault("reference", module)  # whose classes init arguments may be of
    model = module.ModelNew(*pickle.loads(setup["init"])).to(device=told["device"], dtype=dtype)
    tensors = iter([random_tensor(dtype, shape, told["device"]) for dtype, shape, _ in told["layout"]])
    leaves = [next(tensors) if is_tensor else value for is_tensor, value, _ in setup["leaves"]]
    inputs = pytree.tree_unflatten(leaves, setup["spec"])
    for _ in range(2):
        model(*inputs)
    if told["device"] != "cpu":
        torch.cuda.synchronize()
    look = {"marked": marked, "traced": traced}.get(told.get("look", ""))
    if look is not None:
        look(lambda: model(*inputs), told)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
