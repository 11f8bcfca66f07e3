"""Whatever shapes a task has: the reference written another way is correct, one wrong element is not."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.kernelbench.evaluator import Effort, Measurement, Referee
from kernelwright.kernelbench.records import Candidate, Precision, Task, Verdict
from tests.helpers.evaluator.trial import candidate_of

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns))

    def forward(self, x, y, indices):
        return {body}

def get_inputs():
    return [{draw}, torch.randn({columns}), torch.randint(0, {columns}, (5,))]

def get_init_inputs():
    return [{columns}]
"""
# What the reference computes along dimension {d}, and the same written another way.
OPERATORS = {
    "pointwise": ("x * torch.sigmoid(x)", "x / (1 + torch.exp(-x))"),
    "sum": ("x.sum({d})", "sum(x.float().unbind({d})).to(x.dtype)"),
    "softmax": ("torch.softmax(x, {d})", "(lambda e: e / e.sum({d}, True))((x - x.amax({d}, True)).exp())"),
    "product": ("x.movedim({d}, -1) @ x.movedim({d}, -1).mT",
                "torch.einsum('...ik,...jk->...ij', x.movedim({d}, -1), x.movedim({d}, -1))"),
    "scan": ("x.cumsum({d})", "torch.stack([x.narrow({d}, 0, i + 1).sum({d}) for i in range(x.shape[{d}])], {d})"),
    "index": ("x.argmax({d})", "x.max({d}).indices"),
    "several": ("(x.amax({d}), x.mean(), x.transpose(0, {d}))", "(x.max({d})[0], x.sum() / x.numel(), x.transpose({d}, 0))"),
    "broadcasting": ("x * y + self.weight", "torch.addcmul(self.weight, y, x)"),
    "gather": ("x.index_select(-1, indices)", "x[..., indices]"),
    "comparison": ("x > y", "(y < x).clone()"),
    "views": ("(x.flatten(), self.weight)", "(x.reshape(-1), self.weight.view(-1))"),
    "scalar": ("x.square().mean()", "(x * x).flatten().sum() / x.numel()"),
}  # fmt: skip
BRIEF = Effort(rounds=1, processes=1, most_processes=1, half_width=1.0)


# One element of the first output is another than it should be.
SPOILED = """
def spoiled(y):
    first, *rest = y if isinstance(y, tuple) else (y,)
    first = first.contiguous().clone()
    flat = first.view(-1)
    one = int({where} * len(flat))
    flat[one] = ~flat[one] if flat.dtype is torch.bool else flat[one] + (flat.abs().max() / 4 + 1).to(flat.dtype)
    return (first, *rest) if rest else first
"""


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Task, str, str]:
    """A task, the body of its forward, and the same written another way."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 33]), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(shape) - 1))
    name = draw(st.sampled_from([name for name in OPERATORS if name != "product" or len(shape) > 1]))
    inputs = draw(
        st.sampled_from(["torch.randn({s})", "torch.rand({s})", "torch.randn({s}).transpose(0, {d})"])
    )
    precision = draw(st.sampled_from([Precision.fp32, Precision.bf16]))
    body, other = (text.replace("{d}", str(dim)) for text in OPERATORS[name])
    inputs = inputs.replace("{s}", ", ".join(map(str, shape))).replace("{d}", str(dim))
    if "transpose" in inputs:  # back to the shape that was drawn, and other strides
        inputs += f".contiguous().transpose(0, {dim})"
    source = REFERENCE.format(body=body, draw=inputs, columns=shape[-1])
    return Task(id="file:shapes", level=1, source=source, precision=precision), body, other


def candidate(task: Task, old: str, new: str, before: str = "") -> Candidate:
    assert old in task.source
    return candidate_of(before + task.source.replace("class Model(", "class ModelNew(").replace(old, new))


def examples(most: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=most, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


@examples(10)
@given(tasks())
def test_written_another_way_it_is_correct(evaluator: Referee, drawn: tuple[Task, str, str]) -> None:
    task, body, other = drawn
    evaluation = evaluator.evaluate(task, candidate(task, body, other), Measurement(("eager",), BRIEF))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


@examples(6)
@given(tasks(), st.floats(0, 1, exclude_max=True))
def test_one_wrong_element_is_noticed(evaluator: Referee, drawn: tuple[Task, str, str], where: float) -> None:
    task, body, _ = drawn
    wrong = candidate(task, body, f"spoiled({body})", SPOILED.replace("{where}", str(where)))
    evaluation = evaluator.evaluate(task, wrong, Measurement(("eager",), BRIEF))
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason
