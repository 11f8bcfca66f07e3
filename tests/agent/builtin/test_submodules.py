"""Submodules that cannot be traced: left to torch where that is all they do, with kernels around them."""

import re
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.proving import assert_right, models, propose, prove, ruff, source

PARTS = """
class Router(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, sign=1.0):
        if x.sum() * sign > 0:
            return self.linear(x)
        return -x


class Ranked(nn.Module):
    def forward(self, x):
        best = x[0, 0].item()
        return x * best, x.argmax(1), None


class Named(nn.Module):
    def forward(self, pair, options):
        low, (high, *_) = pair
        return {"scaled": low * float(high.max()), "parts": [high, options["shift"] + low]}


class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)


class Selected(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        rows = (x.sum(1) > 0).nonzero().squeeze(1)
        y[rows] = x[rows].exp()
        return y


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls.item()


class Noted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if not x.sum() > 1e9:
            self.calls += 1


class Flat(nn.Module):
    def forward(self, x):
        return x.view(-1) * float(x[0, 0])


class Turned(nn.Module):
    def forward(self, x):
        return x.mT.view(-1) * float(x[0, 0])


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router(16)

    def forward(self, x, depth):
        return self.router(x) if depth == 0 else self(x * 0.5, depth - 1) + 1


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = Router(width)

    def forward(self, x):
        return x + torch.tanh(self.router(self.norm(x)) * 2)


class Positive(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Measured(nn.Module):
    def forward(self, x):
        return x * 2, float(x.sum())


class Written(nn.Module):
    def forward(self, x):
        return x.mul_(float(x[0, 0]))


class Balanced(nn.Module):
    def forward(self, x):
        self.loss = x.square().mean() * float(x[0, 0])
        return x * float(x[0, 1])


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 16))

    def forward(self, x):
        self.state.add_(x * float(x[0, 0]))
        return self.state


class Same(nn.Module):
    def forward(self, x):
        return x if x.numel() and float(x[0, 0]) != 7.0 else x + 1


"""


def built(forward: str, init: str = "pass", inputs: str = "torch.randn(8, 16)", arguments: str = "x") -> str:
    return source(forward, inputs, init=init, arguments=arguments).replace(
        "class Model", f"{PARTS}class Model"
    )


LEFT = {
    "control flow on data": (
        "return torch.softmax(self.router(torch.relu(x) + 1) * 2, -1)",
        "self.router = Router(16)",
        "router",
    ),
    "several results, and none": (
        "y, i, _ = self.ranked(x * 2); return torch.sigmoid(y + 1) * i[:, None]",
        "self.ranked = Ranked()",
        "ranked",
    ),
    "nested arguments and results": (
        "found = self.named((x + 1, [x * 2, 'a {} b', None]), options={'shift': 0.5}); "
        "return (found['scaled'] - found['parts'][0]).relu() * found['parts'][1]",
        "self.named = Named()",
        "named",
    ),
    "NumPy": ("return torch.exp(self.numpy(x + 1) - 2)", "self.numpy = Numpy()", "numpy"),
    "sizes that depend on data inside": (
        "return torch.tanh(self.some(x * 2) + 1)",
        "self.some = Selected()",
        "some",
    ),
    "two calls in other shapes and ways": (
        "return torch.tanh(self.router(x + 1)).sum(0) + self.router(x[:3] * 2, sign=-1.0).relu().sum(0)",
        "self.router = Router(16)",
        "router",
    ),
    "twice the same call": (
        "return torch.tanh(self.counted(x) + 1) - torch.tanh(self.counted(x) + 1)",
        "self.counted = Counted()",
        "counted",
    ),
    "called for what it keeps": (
        "y = torch.tanh(x + 1); self.noted(x); return y.exp()",
        "self.noted = Noted()",
        "noted",
    ),
    "one of each in a stack, which is traced": (
        "for block in self.blocks:\n            x = block(x)\n        return self.ends['0'](x)",
        "self.blocks = nn.ModuleList(Block(16) for _ in range(3)); "
        "self.ends = nn.ModuleDict([('0', nn.Sequential(nn.Sigmoid(), Selected(), nn.Tanh()))])",
        "blocks.0.router blocks.1.router blocks.2.router ends.0.1",
    ),
    "in one that calls itself": (
        "return torch.tanh(self.nested(x, 2) * 3)",
        "self.nested = Nested()",
        "nested.router",
    ),
    "one under two names": (
        "return torch.tanh(self.b(torch.relu(self.a(x + 1)) * 2) + 1)",
        "self.a = Router(16); self.b = self.a",
        "a",
    ),
    "views that ask how memory lies": (
        "y = torch.tanh(x + 1); "
        "return (self.flat(y[:, 3:8].contiguous()) + 1).exp(), self.turned(y.mT), self.turned(self.weight)",
        "self.flat = Flat(); self.turned = Turned(); self.weight = nn.Parameter(torch.randn(8, 16).t())",
        "flat turned",
    ),
    "its own input as its result": (
        "y = x * 2; z = self.same(y); return torch.tanh(z + y), z",
        "self.same = Same()",
        "same",
    ),
}


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
