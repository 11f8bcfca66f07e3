"""The gradient of a task as a task, and its kernel as the backward of a package."""

import textwrap
from pathlib import Path

import pytest
import torch
from exporting import NORM, SIGMOIDS, python, winner

from kernelbench.errors import UsageError
from kernelbench.evaluator import Evaluator
from kernelbench.records import Task
from kernelbench.sources import input_domains
from results.dropin.package import Chosen, gradient_task, write


@pytest.mark.parametrize("saved", [False, True])
def test_the_gradient_is_a_task_that_computes_it(saved: bool) -> None:
    for one in (NORM, SIGMOIDS):
        forward: dict[str, object] = {}
        found: dict[str, object] = {}
        exec(one.task.source, forward)
        exec(gradient_task(one.task, saved), found)
        given = found["get_inputs"]()  # type: ignore[operator]
        made = found["Model"]()(*given)  # type: ignore[operator]
        assert len(made) == 2
        if not saved:  # then it takes gradients of the outputs, and what the forward takes
            inputs = [each.requires_grad_() for each in given[-2:]]
            model = forward["Model"](*forward["get_init_inputs"]())  # type: ignore[operator]
            outputs = torch.func.functional_call(
                model,
                dict(zip(dict(model.named_parameters()), inputs[1:], strict=False)),
                tuple(inputs[: 2 - len(list(model.parameters()))]),
            )
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.testing.assert_close(made, torch.autograd.grad(outputs, inputs, given[:-2]))


def test_the_gradient_s_inputs_are_of_the_task_s_domains(tmp_path: Path) -> None:
    """Else the evaluator would try indices out of range, or refuse the task."""
    embedding = Task(
        id="file:embedding",
        level=1,
        source=textwrap.dedent("""
            import torch
            from torch import nn

            input_domains = ["index"]

            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embedding = nn.Embedding(16, 8)

                def forward(self, places):
                    return self.embedding(places).square()

            def get_inputs():
                return [torch.randint(0, 16, (4, 6))]

            def get_init_inputs():
                return []
        """),
    )
    source = gradient_task(embedding)
    assert input_domains(source) == ["real", "index", "real"]
    assert "pow" not in source.rpartition("class Model(")[2], "the first power is no operation"
    with Evaluator(cache=tmp_path) as evaluator:
        assert evaluator.audit(Task(id="file:gradient", level=1, source=source)) == []


def test_a_backward_that_is_a_kernel(tmp_path: Path) -> None:
    """It is the gradient's own reference, under another name, here; and not that of another task."""
    source = gradient_task(SIGMOIDS.task, saved=True)
    own = winner(source, f"{source}\n\nModelNew = Model\n", "gradient")
    source = gradient_task(NORM.task, saved=True)
    of_norm = winner(source, f"{source}\n\nModelNew = Model\n", "gradient")
    chosen = [Chosen("sigmoids", SIGMOIDS, backward=own), Chosen("rms_norm", NORM, backward=of_norm)]
    written = write(chosen, tmp_path / "out", "fused", measure=False)
    assert [kernel["backward"]["way"] for kernel in written["kernels"]] == ["kernel", "kernel"]
    python(tmp_path / "out", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    with pytest.raises(UsageError, match="is not the gradient of file:rms_norm"):
        write([Chosen("rms_norm", NORM, backward=own)], tmp_path / "other", "fused")
