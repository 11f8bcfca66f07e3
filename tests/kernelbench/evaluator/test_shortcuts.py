"""Kernels that would read less than they should are noticed; where a task hides it, the user is told."""

import pytest
import torch

from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.evaluator.correctness.mutations import (
    MOST,
    MutationTrials,
    _rank_one,
    _rounded,
    _sampled,
    _truncated,
)
from tests.helpers.evaluator.trial import task_of

TEMPLATE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(96, 64)
        self.conv = nn.Conv2d(4, 8, 3)
        self.norm = nn.LayerNorm(96)

    def forward(self, x):
        return {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
FAMILIES = {
    "product": "self.linear(x)",
    "product_and_pointwise": "torch.nn.functional.gelu(self.linear(x)) * 2",
    "softmax": "torch.softmax(x, -1)",
    "mean": "x.mean(1)",
    "variance": "x.var(0)",
    "largest": "x.amax(1)",
    "scan": "x.cumsum(1)",
    "norm": "self.norm(x)",
    "convolution": "self.conv(x.view(8, 4, 12, 16))",
    "pool": "torch.nn.functional.avg_pool2d(x.view(8, 4, 12, 16), 2)",
    "loss": "torch.nn.functional.smooth_l1_loss(x, x.flip(0), reduction='none').mean(1)",
    "attention": "torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])",
    "index": "x.argmax(1)",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_reading_less_is_noticed(name: str, evaluator: Referee) -> None:
    source = TEMPLATE.replace("{body}", FAMILIES[name]).replace("{inputs}", "torch.rand(64, 96)")
    mutations = evaluator.sessions.open(task_of(source, name)).oracle.mutations(
        evaluator.sessions.protocol.families
    )
    assert any(mutation.changes for mutation in mutations.tried)
    assert not mutations.unnoticed, [str(mutation) for mutation in mutations.unnoticed]


def test_what_could_be_left_out_is_named(evaluator: Referee) -> None:
    body = "100 + 1e-5 * torch.sigmoid(self.linear(x))"
    source = TEMPLATE.replace("{body}", body).replace("{inputs}", "torch.rand(64, 96)")
    unnoticed = (
        evaluator.sessions.open(task_of(source))
        .oracle.mutations(evaluator.sessions.protocol.families)
        .unnoticed
    )
    assert {mutation.name for mutation in unnoticed} >= {"addmm", "sigmoid"}
    assert any("reads the mean of operand 1" in str(mutation) for mutation in unnoticed)


def test_asked_again_it_begins_anew(evaluator: Referee) -> None:
    source = TEMPLATE.replace("{body}", FAMILIES["softmax"]).replace("{inputs}", "torch.rand(64, 96)")
    oracle = evaluator.sessions.open(task_of(source)).oracle
    for family in ("task", "zero_centred"):
        assert {mutation.noticed_by for mutation in oracle.mutations([family]).tried} == {family}


def test_a_sum_of_many_that_reads_a_sample_passes_allclose_and_not_the_budgets(evaluator: Referee) -> None:
    source = TEMPLATE.replace("{body}", "x.mean(1)").replace("{inputs}", "torch.rand(8, 1000000)")
    tried = (
        evaluator.sessions.open(task_of(source)).oracle.mutations(evaluator.sessions.protocol.families).tried
    )
    sample = next(s for s in tried if s.reads == "a sample" and s.dim == 1)
    assert sample.close[1e-2] and sample.noticed_by is not None


def test_no_more_are_tried_than_there_is_time_for() -> None:
    x = torch.rand(32, 32)

    def run() -> list[torch.Tensor]:
        y = x
        for _ in range(200):
            y = y @ x
        return [y]

    mutations = MutationTrials(run, "fp32")
    assert mutations.possible > MOST >= len(mutations.tried) > MOST // 2
    assert len({mutation.operator for mutation in mutations.tried}) > 100


def test_what_is_read() -> None:
    x = torch.arange(128.0)
    assert _sampled(x, 0).unique().tolist() == list(range(0, 128, 16))
    assert _sampled(x[:3], 0).tolist() == [0, 0, 2]
    assert _truncated(x, 0).tolist() == [*range(120), *range(112, 120)]
    y = torch.rand(64, 64) + 0.5
    assert torch.equal(_rounded(y), _rounded(y).half().float())
    assert ((_rounded(y) - y).abs() <= y.abs() * 2**-11).all()
    assert torch.linalg.matrix_rank(_rank_one(y)) == 1
