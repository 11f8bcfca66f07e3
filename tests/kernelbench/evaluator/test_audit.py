"""The audit flags tasks that measure nothing, and leaves sound ones alone."""

import pytest

from kernelwright.kernelbench.evaluator import Referee
from tests.helpers.evaluator.trial import REFERENCE, task_of

TEMPLATE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x, y):
        {body}

def get_inputs():
    return [torch.randn(32, 64), torch.randn(32, 64)]

def get_init_inputs():
    return []
"""

CASES = {
    "sound": ("return torch.tanh(self.first(x)) * self.second(y)", ""),
    "sound_in_place": (
        "z = x.square().mean(1, keepdim=True); z.add_(0.1); return self.first(y) * z.rsqrt() + self.second(x)",
        "",
    ),
    "sound_guarded": ("return torch.nn.functional.normalize(self.first(x) + self.second(y))", ""),
    "zeros": (
        "z = self.first(x) + self.second(y); return torch.clamp(torch.clamp(z, max=0.0), min=0.0)",
        "all zeros",
    ),
    "constant": (
        "return torch.softmax((self.first(x) + self.second(y)).sum(1, keepdim=True), 1)",
        "same for different",
    ),
    "ignored_input": ("return self.second(self.first(x))", "ignores input 1"),
    "ignored_weight": ("return self.first(x) + y", "ignores the weight second.weight"),
    "dead_operation": (
        "z = self.first(x); torch.exp(z); return z + self.second(y)",
        "nothing depends on exp",
    ),
    "dead_reduction": (
        "z = self.first(x); z.norm(); return z + self.second(y)",
        "nothing depends on",
    ),
    "idle_operation": ("return torch.clamp(torch.tanh(self.first(x) + self.second(y)), -1, 1)", "clamp"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_audit_says_why_a_task_measures_nothing(case: str, evaluator: Referee) -> None:
    body, words = CASES[case]
    findings = evaluator.sessions.open(task_of(TEMPLATE.replace("{body}", body), case)).oracle.audit()
    if words:
        assert any(words in finding for finding in findings), findings
    else:
        assert findings == []


def test_the_reference_of_these_tests_is_sound(evaluator: Referee) -> None:
    assert evaluator.sessions.open(task_of(REFERENCE)).oracle.audit() == []
