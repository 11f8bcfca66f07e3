"""Costs of a reference's operators: what it calls, on which tensors, and how long that takes."""

import pytest
import torch
from torch import nn

from kernelwright.kernelbench.evaluator import QUICK, Measurement, Referee
from kernelwright.kernelbench.evaluator.processes.operator_costs import operator_costs
from kernelwright.kernelbench.evaluator.reference.draws import CPU
from kernelwright.kernelbench.records import Candidate, Task


def test_operators_are_named_with_their_tensors_and_what_they_cost() -> None:
    layer, x = nn.Linear(512, 1000), torch.randn(128, 512)
    with torch.no_grad():
        found = operator_costs(lambda: torch.softmax(layer(layer.weight[:128]) + layer(x), -1).t(), CPU)
    by_name = {cost.signature.partition("(")[0]: cost for cost in found}
    assert set(by_name) == {"aten.addmm", "aten.add", "aten._softmax"}  # and no view
    product = by_name["aten.addmm"]
    wanted = "aten.addmm(float32[1000], float32[128, 512], float32[512, 1000]) -> float32[128, 1000]"
    assert (product.signature, product.calls) == (wanted, 2)
    assert product.flops == 2 * 2 * 128 * 512 * 1000
    assert product.bytes == 2 * 4 * (1000 + 128 * 512 + 512 * 1000 + 128 * 1000)
    assert by_name["aten._softmax"].bytes == 2 * 4 * 128 * 1000
    seconds = [cost.seconds for cost in found]
    assert all(seconds) and seconds == sorted(seconds, reverse=True)


def test_what_is_written_in_place_counts_and_long_signatures_are_cut() -> None:
    x = torch.randn(64, 64)
    found = operator_costs(lambda: torch.cat([x.clone().relu_()] * 40), CPU)
    assert {cost.signature.partition("(")[0] for cost in found} == {"aten.clone", "aten.relu_", "aten.cat"}
    longest = max((cost.signature for cost in found), key=len)
    assert len(longest) <= 200 and longest.endswith("…) -> float32[2560, 64]")


@pytest.mark.slow
@pytest.mark.builds
def test_an_evaluation_that_asks_has_the_operators_of_the_reference(evaluator: Referee) -> None:
    source = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x @ x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
    task = Task(id="test:operators", level=1, source=source)
    candidate = Candidate(source=source.replace("Model", "ModelNew"), language="torch", author="test")
    asked = evaluator.evaluate(task, candidate, Measurement(("eager",), QUICK, operators=True))
    names = [cost.signature.partition("(")[0] for cost in asked.operators]
    assert sorted(names) == ["aten.mm", "aten.relu"]
    assert evaluator.evaluate(task, candidate, Measurement(("eager",), QUICK)).operators == ()
