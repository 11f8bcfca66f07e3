"""Kernels of the builtin coder, in Triton and in CUDA C++, are right on a GPU."""

from typing import Any

import pytest

from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.records import Task, Verdict
from tests.helpers.builtin.numerics import REFERENCES
from tests.helpers.builtin.products import PRODUCTS
from tests.helpers.builtin.proving import propose

pytestmark = pytest.mark.gpu

# Another kind of kernel each, which a new GPU is tried with (tests/gpu/acceptance).
ACCEPTED = {
    "pointwise chain with broadcasting",
    "layer norm, gelu, residual",
    "cross entropy",
    "statistics of long columns",
    "running sums of running sums",
    "convolution, bias, relu",
    "small whole numbers",
    "double precision",
}


def cases() -> list[Any]:
    both = {("triton", name): text for name, text in REFERENCES.items()}
    both |= {("cuda", name): text for name, text in {**REFERENCES, **PRODUCTS}.items()}
    return [
        pytest.param(
            language, text, id=f"{language}-{name}", marks=[pytest.mark.acceptance] * (name in ACCEPTED)
        )
        for (language, name), text in both.items()
    ]


@pytest.mark.parametrize(("language", "text"), cases())
def test_kernels_are_right(language: str, text: str, brief: Referee) -> None:
    task = Task(id="file:test", level=1, source=text)
    evaluation = brief.evaluate(task, propose(text, language), EAGER)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
