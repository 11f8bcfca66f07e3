"""Products on cuda:0 and the ceiling of their precision, on the tests' own driver (tests/helpers/gpu)."""

from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.evaluator import EAGER, Limits, Referee
from kernelwright.kernelbench.records import Candidate, Precision, Task, Verdict
from kernelwright.profiling.roofline import roofline
from tests.helpers.gpu.evaluating import gpu_referee

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48))

    def forward(self, x):
        return x @ self.weight

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""
FLOPS = 2 * 32 * 64 * 48


def task_in(precision: Precision) -> Task:
    return Task(id=f"test:{precision}", level=1, source=REFERENCE, precision=precision)


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    folder = tmp_path_factory.mktemp("gpu")
    with gpu_referee(folder, folder / "cache", limits=Limits(call_s=3.0)) as (made, _):
        yield made


@pytest.mark.parametrize(
    ("precision", "counted"),
    [(Precision.task, "fp32"), (Precision.tf32, "tf32"), (Precision.bf16, "bf16")],
)
def test_flops_are_counted_in_the_precision_of_the_task(
    referee: Referee, precision: Precision, counted: str
) -> None:
    work = referee.work(task_in(precision))
    assert work.products == {counted: FLOPS} and work.flops == FLOPS


@pytest.mark.slow
def test_a_bf16_kernel_has_the_ceilings_of_a_gpu_with_tensor_cores(referee: Referee) -> None:
    task = task_in(Precision.bf16)
    candidate = Candidate(source=REFERENCE.replace("Model", "ModelNew"), language="torch", author="test")
    evaluation = referee.evaluate(task, candidate, EAGER)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.target.ceilings.bf16_flops_s == 989e12
    profile = roofline(referee.work(task), evaluation.target, evaluation)
    assert profile is not None and profile.value("compute_floor") == pytest.approx(1e6 * FLOPS / 989e12)
