"""One call of a candidate that is built for a chip and not run, on inputs that take no memory."""

import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo

from kernelwright.kernelbench.chips.cuda_launches import note_cuda
from kernelwright.kernelbench.chips.notes import Launched, Notebook
from kernelwright.kernelbench.chips.torch_call import TorchCall
from kernelwright.kernelbench.chips.torch_calls import TorchCalls
from kernelwright.kernelbench.chips.triton_launches import note_triton
from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu
from kernelwright.kernelbench.jit import launch_mode


@dataclass(frozen=True)
class BuiltTask:
    """Kernels and torch's calls of a candidate; bytes and FLOPs (by precision) of its task's reference."""

    kernels: list[Launched]
    torch_calls: list[TorchCall]
    moved_bytes: int
    flops: dict[str, int]


def build(source: str, reference: str, chip: str) -> BuiltTask:
    """Build a candidate for a task's reference. Raises RuntimeError for what cannot be built."""
    torch.set_grad_enabled(False)
    notebook = Notebook()
    if "triton" in source:
        note_triton(notebook, int(chip.removeprefix("sm_")))
    note_cuda(notebook, chip)
    with tempfile.TemporaryDirectory() as folder, launch_mode.fixed("gpu"), TorchOnGpu(chip):
        task, candidate = _module(folder, "reference", reference), _module(folder, "candidate", source)
        with TorchCalls():
            given = task.get_init_inputs()
            model, new = task.Model(*given).eval(), candidate.ModelNew(*given).eval()
            inputs = task.get_inputs()
        with TorchCalls() as of_reference:
            outputs = model(*inputs)
        with TorchCalls() as calls:
            new(*inputs)
        kernels = notebook.read()
    if notebook.problems:
        raise RuntimeError("; ".join(notebook.problems))
    flops: Counter[str] = Counter()
    for call in of_reference.found:
        flops[call.precision] += call.flops
    moved = {t.data_ptr(): t.numel() * t.element_size() for t in _tensors([inputs, outputs])}
    moved |= {t.data_ptr(): t.numel() * t.element_size() for t in model.state_dict().values()}
    return BuiltTask(kernels, calls.found, sum(moved.values()), {k: n for k, n in flops.items() if n})


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _module(folder: str, name: str, source: str) -> ModuleType:
    """Import a source from a file, which Triton reads its functions from."""
    file = Path(folder) / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
