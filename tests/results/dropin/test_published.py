"""The kernels to publish: the builtin coder has one for each task and for each gradient, and both are right."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from agent.builtin.coder import BuiltinCoder
from agent.tracing import trace
from kernelbench.evaluator import Evaluator
from kernelbench.records import Task
from results.dropin.package import gradient_task

TASKS = sorted((Path(__file__).parents[3] / "results" / "published" / "kernels" / "tasks").glob("*.py"))


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltinCoder]:
    with Evaluator(cache=tmp_path_factory.mktemp("cache")) as evaluator:
        yield BuiltinCoder(partial(trace, evaluator.pool))


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_its_kernels_are_right(coder: BuiltinCoder, path: Path) -> None:
    forward = Task(id=f"file:{path.stem}", level=1, source=path.read_text())
    backward = Task(id=f"file:{path.stem}_gradient", level=1, source=gradient_task(forward, saved=True))
    for task in (forward, backward):
        candidate = coder.propose(task, [], None)
        assert candidate.language == "cpp", candidate.source
        found: dict[str, object] = {}
        exec(task.source, found)
        exec(candidate.source, found)
        torch.manual_seed(0)
        inputs = found["get_inputs"]()  # type: ignore[operator]
        models = [found[name](*found["get_init_inputs"]()) for name in ("Model", "ModelNew")]  # type: ignore[operator]
        models[1].load_state_dict(models[0].state_dict())
        with torch.no_grad():
            right, ours = (model(*inputs) for model in models)
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)
