"""Submodules that cannot be traced: left to torch where that is all they do, with kernels around them."""

import re
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.proving import assert_right, models, propose, prove, ruff
from tests.helpers.builtin.submodules import LEFT, built

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("case", LEFT)
def test_it_is_left_to_torch_and_the_rest_is_fused(case: str, tmp_path: Path) -> None:
    forward, init, left = LEFT[case]
    text = built(forward, init)
    candidate = prove(text, tmp_path)
    said = re.findall(r"^(.+) (?:is|are) left to torch: ", candidate.source, re.MULTILINE)
    assert sorted(", ".join(said).split(", ")) == sorted(left.split())
    for factor in (-1.0, 0.0, float("nan")):
        model, model_new, (x,) = models(text, candidate, tmp_path)
        assert_right(model, model_new, [x * factor])
    assert ruff(candidate.source, tmp_path) == "All checks passed!\n"


@pytest.mark.parametrize("case", ["twice the same call", "called for what it keeps"])
def test_what_it_keeps_is_kept_as_in_the_reference(case: str, tmp_path: Path) -> None:
    forward, init, left = LEFT[case]
    text = built(forward, init)
    model, model_new, inputs = models(text, propose(text), tmp_path)
    for _ in range(3):
        model(*inputs)
        model_new(*inputs)
    kept = model_new.get_submodule(left).calls
    assert kept == model.get_submodule(left).calls
    assert kept >= 3


RANDOM = {
    "dropout": (
        "y = self.first(torch.relu(x) + 1); z = self.second(x); return torch.tanh(y * 2) + self.first(z), z",
        "self.first = nn.Dropout(0.5); self.second = nn.Dropout(0.2)",
    ),
    "operators among submodules": (
        "a = F.rrelu(torch.tanh(x) * 2, training=True); b = self.drop(x); c = F.rrelu(x, training=True); "
        "return torch.tanh(a + 1) * b + c + F.rrelu(x, training=True)",
        "self.drop = nn.Dropout(0.5)",
    ),
    "attention, twice the same": (
        "q, k = x.view(1, 8, 2, 8).transpose(1, 2), (x + 1).view(1, 8, 2, 8).transpose(1, 2); "
        "a, b = (F.scaled_dot_product_attention(q, k, k, dropout_p=0.5) for _ in range(2)); return torch.tanh(a - b)",
        "pass",
    ),
    "written in place": (
        "return torch.tanh(self.stack(x + 1) * 2)",
        "self.stack = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True))",
    ),
}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers_are_drawn_in_the_order_of_the_reference(case: str, tmp_path: Path) -> None:
    text = built(*RANDOM[case])
    candidate = propose(text)
    assert candidate.language == "cpp"
    model, model_new, inputs = models(text, candidate, tmp_path)
    for seed in range(3):
        torch.manual_seed(seed)
        wanted = model(*inputs)
        torch.manual_seed(seed)
        torch.testing.assert_close(model_new(*inputs), wanted)


def test_results_of_another_shape_are_refused(tmp_path: Path) -> None:
    text = built("return torch.tanh(self.some(x * 2) + 1)", "self.some = Selected()")
    _, model_new, inputs = models(text, propose(text), tmp_path)
    model_new.some.forward = lambda x: x[:2]
    with pytest.raises(ValueError, match=r"some must be torch.float32 of shape \(8, 16\)"):
        model_new(*inputs)


WHOLE = {
    "all else is library calls": (
        "return self.router(x) @ self.router(x).T",
        "self.router = Router(16)",
        "every operation but router, which cannot be traced, is a library call",
    ),
    "the whole decides on data": ("return x.exp() if x.sum() > 0 else -x", "pass", "data-dependent"),
    "its result has a size that depends on data": (
        "return torch.tanh(self.some(x * 2)).sum()",
        "self.some = Positive()",
        "some, which cannot be traced, gives tensors whose shapes depend on the data",
    ),
    "its result is a number": (
        "y, total = self.some(x + 1); return torch.tanh(y) * total",
        "self.some = Measured()",
        "some, which cannot be traced, gives something other than tensors",
    ),
    "it writes into what it is given": (
        "y = x + 1; z = self.some(y); return torch.tanh(y) + z",
        "self.some = Written()",
        "some, which cannot be traced, writes into what it is given",
    ),
    "it leaves a result in an attribute": (
        "y = self.some(x + 1); return torch.tanh(y) + self.some.loss",
        "self.some = Balanced(); self.some.loss = torch.zeros(())",
        "without some, which cannot be traced, results differ",
    ),
    "its state is read elsewhere": (
        "y = self.some(x + 1); return torch.tanh(y) + self.some.state",
        "self.some = Running()",
        "some, which cannot be traced, writes into what is read elsewhere",
    ),
    "its state is its result, and written later": (
        "y = self.some(x + 1); return torch.tanh(y * 2) + self.some(x)",
        "self.some = Running()",
        "some, which cannot be traced, writes into what is read elsewhere",
    ),
    "its input is its result, and written later": (
        "y = x * 2; z = self.same(y); z += 1; return torch.tanh(z + y)",
        "self.same = Same()",
        "without same, which cannot be traced, results differ",
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_where_more_than_results_is_shared_the_reference_stays_whole(case: str, tmp_path: Path) -> None:
    forward, init, reason = WHOLE[case]
    text = built(forward, init)
    candidate = propose(text)
    assert candidate.language == "torch"
    assert reason in candidate.source.splitlines()[0]
    assert_right(*models(text, candidate, tmp_path))
