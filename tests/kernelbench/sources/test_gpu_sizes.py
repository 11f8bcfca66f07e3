"""Sizes of the built-in tasks on a GPU: large enough to time kernels, small enough for 80 GB."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.evaluator.reference.operators import FlopCounter, OperatorMode
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources import builtin, from_words, resolve

MOVED_BYTES = 64 << 20, 1 << 30  # of inputs, weights and outputs: 20 to 320 µs at 3.35 TB/s
FLOPS = 10e9, 500e9  # of products: 0.2 to 10 ms at 51 TFLOP/s in fp32
MADE_BYTES = 8 << 30  # by all operators of a call together
ENTRIES = [entry.id for entry in builtin.entries()]


class Made(OperatorMode):
    """Sums the bytes of results that have memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = pytree.tree_leaves(result)
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.id: task for task in resolve(["builtin"], device="cuda:0")}


@pytest.fixture(params=ENTRIES)
def task(request: pytest.FixtureRequest, tasks: dict[str, Task]) -> Iterator[Task]:
    yield tasks[request.param]


def test_a_call_is_long_enough_and_fits(task: Task) -> None:
    module = ModuleType(task.slug)
    exec(task.source, module.__dict__)
    with torch.device("meta"), torch.no_grad():
        model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()
        with Made() as made, FlopCounter() as counter:
            outputs = pytree.tree_leaves(model(*inputs))
    tensors = [*inputs, *model.state_dict().values(), *outputs]
    moved = sum(tensor.nbytes for tensor in tensors)
    assert moved <= MOVED_BYTES[1] and counter.flops <= FLOPS[1], (moved / 2**20, counter.flops / 1e9)
    assert moved >= MOVED_BYTES[0] or counter.flops >= FLOPS[0], (moved / 2**20, counter.flops / 1e9)
    assert made.bytes <= MADE_BYTES, made.bytes / 2**30
    assert all(tensor.numel() < 2**31 for tensor in tensors)


def test_every_task_has_sizes_and_nothing_else_has() -> None:
    assert sorted(builtin.gpu_sizes()) == sorted(ENTRIES)


def test_the_record_says_which_sizes_were_taken() -> None:
    (on_cpu,) = resolve(["builtin:level1/softmax"])
    (on_gpu,) = resolve(["builtin:level1/softmax"], device="cuda:0")
    assert on_cpu.overrides == {} and "batch_size = 2048" in on_cpu.source
    assert on_gpu.overrides == {"batch_size": "16384"} and "batch_size = 16384" in on_gpu.source
    assert on_gpu.id == on_cpu.id and on_gpu.sha256 != on_cpu.sha256


def test_what_is_set_goes_before_the_sizes_of_a_gpu() -> None:
    wanted = from_words(["batch_size=64", "features=128"])
    (task,) = resolve(["builtin:level1/softmax"], overrides=wanted, device="cuda:0")
    assert task.overrides == {"batch_size": "64", "features": "128"}
