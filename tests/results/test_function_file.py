"""The function that a run began with, defined again by the best kernel."""

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelwright.kernelbench.functions import with_module
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.results.function_file import function_text
from kernelwright.results.outputs import write_outputs
from kernelwright.results.store.folder import RunFolder
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import new_run

TASK = Task(
    id="file:scaled",
    level=0,
    source="""import torch
from torch import nn

rows, shift, SCALE = 8, 0.5, 7


class Model(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, x, w):
        return x * w + self.shift


def get_inputs():
    return [torch.randn(rows, 4), torch.randn(4)]


def get_init_inputs():
    return [shift]
""",
)
SEED = with_module(
    """import torch

SCALE = 0.5


def scaled(x: "float32", w: torch.Tensor, shift=SCALE, *, block: int = 64):
    return x * w + shift
""",
    "scaled",
    "mine.py",
)
BEST = """import torch


def scaled(x):  # another thing of this name
    return x + 0


class ModelNew(torch.nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, x, w):
        return scaled(torch.addcmul(torch.full_like(x, self.shift), x, w))
"""


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("loaded", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder: Path, seed: str, best: str, task: Task = TASK) -> Path | None:
    """The file of a run whose best kernel is `best`."""
    with RunFolder.create(folder) as run, new_run(folder) as database:
        database.add_task(task)
        for number, (source, origin) in enumerate([(seed, "seed"), (best, "round")]):
            kernel = Candidate(source=source, language="triton", author="file", origin=origin)
            evaluation = run_factory.evaluation(task, kernel, eager=1.5 + number)
            database.record_attempt(task.id, number, kernel, None, evaluation, None)
        write_outputs(run, database)
        assert run.best(task.slug).read_text() == best
        file = run.best(f"{task.slug}.function")
    return file if file.exists() else None


def test_the_best_kernel_is_called_as_the_seed_s_function_is(tmp_path: Path) -> None:
    file = written(tmp_path, SEED, BEST)
    assert file is not None
    scaled = loaded(file).scaled
    (tmp_path / "mine.py").write_text(SEED)
    mine = loaded(tmp_path / "mine.py").scaled
    signature = inspect.signature(scaled)
    assert str(signature) == "(x, w, shift=0.5, *, block=64)"
    inputs = [torch.randn(8, 4), torch.randn(4)]
    for call in (lambda f: f(*inputs), lambda f: f(w=inputs[1], x=inputs[0], shift=0.5, block=64)):
        torch.testing.assert_close(call(scaled), call(mine))
    with pytest.raises(ValueError, match=r"shift has to be 0\.5"):
        scaled(*inputs, shift=0.25)
    with pytest.raises(ValueError, match="block has to be 64"):
        scaled(*inputs, block=32)


def test_a_kernel_with_weights_of_its_own_is_not_called_as_a_function(tmp_path: Path) -> None:
    best = BEST.replace("self.shift = shift", "self.shift = torch.nn.Parameter(torch.tensor(shift))")
    file = written(tmp_path, SEED, best)
    assert file is not None
    with pytest.raises(TypeError, match="has weights of its own"):
        loaded(file).scaled(torch.ones(8, 4), torch.ones(4))


def test_any_number_of_arguments_stays_any_number() -> None:
    text = function_text(Candidate(source=with_module("def f(*tensors):\n    ...\n", "f", "f"), language="cpp", author="file"), TASK)  # fmt: skip
    assert text is not None and "def f(*tensors):" in text and "return _called(*tensors)" in text


def test_a_seed_with_its_own_module_has_no_such_file(tmp_path: Path) -> None:
    assert written(tmp_path, BEST, BEST + "\n\nspeed = 2\n") is None
