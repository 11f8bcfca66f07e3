"""The builtin coder has right kernels for gradients as autograd takes them, of the tasks whose kernels are published."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.frontend.decompose import nll_loss_backward
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import Task
from kernelwright.results.dropin.gradient_tasks import gradient_tasks

pytestmark = pytest.mark.builds

TASKS = sorted((Path(__file__).parents[3] / "results" / "published" / "kernels" / "tasks").glob("*.py"))
AT_FIRST = ("rms_norm",)  # of which `make test` takes the ten seconds that it takes


@pytest.fixture(scope="module")
def coder(home: Path) -> Iterator[BuiltinCoder]:
    with Referee.start(cache=home) as evaluator:
        yield BuiltinCoder(partial(trace, evaluator.sessions.pool))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in AT_FIRST else pytest.mark.slow)
        for path in TASKS
    ],
)
def test_its_kernel_is_right(coder: BuiltinCoder, path: Path) -> None:
    forward = Task(id=f"file:{path.stem}", level=1, source=path.read_text())
    task = Task(id=f"file:{path.stem}_gradient", level=1, source=gradient_tasks(forward, "saved")[0])
    candidate = coder.propose(task, [], None)
    assert candidate.language == "cpp", candidate.source
    assert "_backward.default" not in candidate.source, "a gradient is left to torch whole"
    found: dict[str, Any] = {}
    exec(task.source, found)
    exec(candidate.source, found)
    torch.manual_seed(0)
    inputs = found["get_inputs"]()
    with torch.no_grad():
        right, ours = (found[name]()(*inputs) for name in ("Model", "ModelNew"))
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_s_gradient_is_that_of_torch(reduction: str, weighted: bool) -> None:
    """Of rows that do not count, too."""
    torch.manual_seed(0)
    logs = torch.randn(6, 5).log_softmax(1).requires_grad_()
    target = torch.tensor([0, 4, -100, 2, 2, -100])
    weight = torch.rand(5) + 0.5 if weighted else None
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    loss, total = torch.ops.aten.nll_loss_forward(logs, target, weight, number, -100)
    grad = torch.rand(loss.shape)
    (right,) = torch.autograd.grad(loss, logs, grad)
    torch.testing.assert_close(
        nll_loss_backward(grad, logs.detach(), target, weight, number, -100, total), right
    )
