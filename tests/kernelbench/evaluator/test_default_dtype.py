"""Whether a winner computes the same where a training script has set another default dtype."""

import pytest

from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import Evaluate, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"
MADE = "y = torch.empty(x.shape{0}); y.copy_(torch.nn.functional.gelu(self.norm(x))); return y"


@pytest.mark.parametrize(("dtype", "needed"), [("", True), (", dtype=x.dtype", False)])
def test_a_tensor_without_a_dtype_needs_the_default(dtype: str, needed: bool, evaluate: Evaluate) -> None:
    """It is no verdict: KernelBench runs candidates under torch's defaults."""
    evaluation = evaluate(variant(RETURN, MADE.format(dtype)))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.needs_default_dtype is needed


def test_a_candidate_that_crashes_then_needs_it_too(evaluate: Evaluate) -> None:
    crash = "if torch.get_default_dtype() != torch.float32: import os; os.abort()"
    evaluation = evaluate(variant(RETURN, f"\n        {crash}\n        {RETURN}"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.needs_default_dtype is True
