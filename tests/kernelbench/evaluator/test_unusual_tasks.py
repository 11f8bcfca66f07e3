"""Tasks that draw, write to their inputs, or give and take other things than float32 tensors, by the evaluator."""

import pytest

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.references import task
from tests.helpers.evaluator.trial import Evaluate

CONFIG = """
class Config:
    def __init__(self, d):
        self.d = d
"""
NEEDS_GRADIENT = "[torch.randn(64, 128, requires_grad=True)]"
GRADIENT = "with torch.enable_grad(): return torch.autograd.grad((x**3).sum(), x)[0]"
BACKWARD = "with torch.enable_grad(): (x**3).sum().backward(); return x.grad"
# The task, its forward in the candidate where it is another one, the candidate's before and after, the verdict.
CASES = {
    "a_constant_for_noise": (
        task("return torch.sigmoid(x + torch.randn_like(x))"), ("return", "return 0 * x + 0.5 #"), Verdict.wrong_output),
    "the_same_noise": (task("return torch.sigmoid(x + torch.randn_like(x))"), None, Verdict.correct),
    "zeros_for_what_is_in_place": (
        task("return x.mul_(2).add_(1)"), ("x.mul_(2).add_(1)", "torch.zeros_like(x)"), Verdict.wrong_output),
    "a_function_for_what_is_in_place": (
        task("return x.mul_(2).add_(1)"), ("x.mul_(2).add_(1)", "torch.add(x * 2, 1)"), Verdict.correct),
    "in_place_as_the_reference": (task("return x.mul_(2).add_(1)"), None, Verdict.wrong_output),
    "an_output_in_a_buffer": (
        task("return torch.add(x, 1, out=self.out)", init="self.register_buffer('out', torch.empty(64, 128))"),
        ("torch.add(x, 1, out=self.out)", "x + 1"), Verdict.correct),
    "an_output_in_a_buffer_of_its_own": (
        task("return torch.add(x, 1, out=self.out)", init="self.register_buffer('out', torch.empty(64, 128))"),
        None, Verdict.correct),
    "a_slice_of_a_cache": (
        task("self.k[:, 10:11] = x; keys = self.k[:, :11]; return keys.sum(1), keys", draw="[torch.randn(4, 1, 32)]",
             init="self.register_buffer('k', torch.zeros(4, 64, 32))"), None, Verdict.correct),
    "a_list_that_grows": (
        task("kept.append(x); return torch.cat(kept, 1)", inputs=", x, kept",
             draw="[torch.randn(8, 16), [torch.randn(8, 16)]]"), None, Verdict.correct),
    "a_dict_that_is_emptied": (
        task("x = batch.pop('x'); return torch.relu(x) + batch['b']", inputs=", batch",
             draw="[{'x': torch.randn(64, 64), 'b': torch.randn(64)}]"), None, Verdict.correct),
    "keys_in_another_order": (
        task("return {'a': x * 2, 'n': None, 'b': (x.sum().item(), 3)}"),
        ("{'a': x * 2, 'n': None, 'b': (x.sum().item(), 3)}", "{'b': [x.sum().item(), 3], 'a': x * 2, 'n': None}"),
        Verdict.correct),
    "another_number": (task("return x * 2, 3"), ("x * 2, 3", "x * 2, 4"), Verdict.wrong_output),
    "a_gradient": (task(GRADIENT, draw=NEEDS_GRADIENT), None, Verdict.correct),
    "a_gradient_in_closed_form": (
        task(GRADIENT, draw=NEEDS_GRADIENT), (GRADIENT, "return 3 * x.detach() ** 2"), Verdict.correct),
    "another_gradient": (
        task(GRADIENT, draw=NEEDS_GRADIENT), (GRADIENT, "return 2 * x.detach() ** 2"), Verdict.wrong_output),
    "a_gradient_that_is_kept": (
        task(BACKWARD, draw=NEEDS_GRADIENT), (BACKWARD, "return 3 * x.detach() ** 2"), Verdict.correct),
    "half_precision_and_bytes": (
        task("return (x.float() * s).to(torch.bfloat16)", inputs=", x, s",
             draw="[torch.randn(64, 128).to(torch.float8_e4m3fn), torch.rand(128, dtype=torch.float64)]"),
        ("(x.float() * s)", "(s * x.double())"), Verdict.correct),
    "a_configuration": (
        task("return x @ self.w", init="self.w = nn.Parameter(torch.randn(c.d, 8))", arguments=", c",
             given="[Config(128)]", before=CONFIG), (CONFIG, ""), Verdict.correct),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_an_unusual_task_asks_for(case: str, evaluate: Evaluate) -> None:
    source, change, verdict = CASES[case]
    candidate = source.replace("class Model(", "class ModelNew(")
    if change is not None:
        assert change[0] in candidate
        candidate = candidate.replace(*change, 1)
    evaluation = evaluate(candidate, source)
    assert evaluation.verdict is verdict, evaluation.reason


REFUSED = {
    "depend on earlier calls (ema)": task(
        "y = x - self.ema; self.ema.lerp_(x.mean(0), 0.1); return y",
        init="self.register_buffer('ema', torch.zeros(128))",
    ),
    "fails at forward(float32[64, 128]): RuntimeError": task("return x @ x"),
    "differs from its own float64 result": task("return (x + 1e8) - 1e8"),
    "whose item 0 (<function get_init_inputs": task("return x", arguments=", f", given="[lambda: 1]"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_task_is_refused_and_said_why(words: str, evaluate: Evaluate) -> None:
    with pytest.raises(TaskError) as error:
        evaluate(REFUSED[words].replace("class Model(", "class ModelNew("), REFUSED[words])
    assert error.value.message.startswith("the reference of file:reference ") and words in error.value.message
