"""Large calls of a reference in slices of the batch, where samples do not depend on each other."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.evaluator.reference import slices
from kernelwright.kernelbench.evaluator.reference.model import Reference

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, y):
        return {returned}

def get_inputs():
    return [torch.rand(70, 8), torch.rand(8)]

def get_init_inputs():
    return []
"""


def reference(returned: str) -> Reference:
    return Reference(SOURCE.format(returned=returned), "fp32", 3, True, torch.device("cpu"))


@pytest.fixture(autouse=True)
def at_any_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slices, "wanted", lambda device, size: True)


@pytest.mark.parametrize(
    ("returned", "batch"),
    [
        ("torch.softmax(self.linear(x), -1) + y", 70),
        ("(x * 2, x.sum(1))", 70),
        ("x / x.norm()", 0),  # over all samples
        ("x.mT @ x", 0),
        ("x + x.mean(0)", 0),
        ("self.norm(x)", 0),
        ("torch.dropout(x, 0.5, True)", 0),
        ("x.view(70, 2, 4) + y.view(2, 4)", 0),  # takes calls on 70 samples alone
    ],
)
def test_samples_are_independent_where_slices_give_the_same(returned: str, batch: int) -> None:
    with torch.no_grad():
        assert reference(returned).batch == batch


def test_slices_give_the_float64_results_of_a_whole_call() -> None:
    with torch.no_grad():
        made = reference("torch.softmax(self.linear(x), -1) + y")
        tensors = made.tensors(11)
        sliced = made.both(tensors, 5)[1]
        moved = list(made.disturbed(2, tensors, 5))
        made.batch = 0
        mine, whole = made.both(tensors, 5)
        assert sliced[0].dtype is torch.float64
        torch.testing.assert_close(sliced, whole, rtol=1e-14, atol=0)
        for other in moved:
            apart = (other[0] - mine[0]).abs().max()
            assert 0 < apart < 1e-5
