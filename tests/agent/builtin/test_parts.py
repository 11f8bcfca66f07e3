"""References whose forward cannot be traced: it stays as it is, and the submodules it calls have kernels."""

import copy
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.proving import assert_right, models, propose, prove, ruff, source

pytestmark = pytest.mark.builds

NET = "self.net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))"
UP = "self.up = nn.Sequential(nn.Softmax(-1), nn.Tanh()); self.down = nn.Sequential(nn.Sigmoid(), nn.LayerNorm(16))"
# What forward does, what there is, and the parts that have kernels.
PARTS = {
    "a branch": (
        "y = self.net(x)\n        return self.up(y) if x.sum() > 0 else self.down(y)",
        f"{NET}; {UP}",
        {"net", "up", "down"},
    ),
    "a loop": (
        "while x.abs().max() > 0.5 and x.isfinite().all():\n            x = x * 0.3 + self.net(x) * 0.01\n"
        "        return x",
        NET,
        {"net"},
    ),
    "parts of parts": (
        "for block in self.blocks:\n            x = block[0](x) if x[0, 0] > 0 else block[1](x) * 2\n        return x",
        "self.blocks = nn.ModuleList(nn.ModuleList([nn.Sequential(nn.Tanh(), nn.LayerNorm(16)), nn.SiLU()])"
        " for _ in range(2))",
        {"blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"},
    ),
    "running statistics": (
        "y = self.norm(x.view(8, 4, 4))\n        return y.exp() if y.sum() > 1e9 else y",
        "self.norm = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())",
        {"norm"},
    ),
    "one that is called in two ways": (
        "y = self.up(x)\n        return self.down(y) + self.down(y[:3]).sum() if x.sum() > 0 else y",
        UP,
        {"up"},
    ),
    "nothing of some": (
        "y = self.linear(x)\n        return self.up(y) if x.sum() > 0 else y",
        f"self.linear = nn.Linear(16, 16); {UP}",
        {"up"},
    ),
}


def written(case: str) -> str:
    forward, init, _ = PARTS[case]
    return source(forward, "torch.randn(8, 16)", init=init)


@pytest.mark.parametrize("case", PARTS)
def test_submodules_have_kernels_where_the_forward_around_them_has_none(case: str, tmp_path: Path) -> None:
    text = written(case)
    candidate = prove(text, tmp_path)
    assert "forward itself is left to torch: torch.export: " in candidate.source
    bound = {
        line.split(".forward = ")[0].strip()
        for line in candidate.source.splitlines()
        if ".forward = " in line
    }
    names = {f"self.{path}".replace(".0", "[0]").replace(".1", "[1]") for path in PARTS[case][2]}
    assert bound == names
    for factor in (-1.0, 0.0):
        model, model_new, (x,) = models(text, candidate, tmp_path)
        assert_right(model, model_new, [x * factor])
        model(x * factor)
        for kept, wanted in zip(model_new.state_dict().values(), model.state_dict().values(), strict=True):
            torch.testing.assert_close(kept, wanted)
    assert ruff(candidate.source, tmp_path) == "All checks passed!\n"


def test_other_shapes_go_the_reference_s_way(tmp_path: Path) -> None:
    text = written("a branch")
    model, model_new, (x,) = models(text, propose(text), tmp_path)
    for other in (x[:3], x[None], x.expand(2, 8, 16)):
        torch.testing.assert_close(model_new(other), model(other))


def test_a_copy_calls_kernels_with_its_own_weights(tmp_path: Path) -> None:
    text = written("a branch")
    _, model_new, (x,) = models(text, propose(text), tmp_path)
    before = model_new(x)
    twin = copy.deepcopy(model_new)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.allclose(twin(x), before)
    assert torch.equal(model_new(x), before)


def test_the_constructor_refuses_other_arguments(tmp_path: Path) -> None:
    text = source(
        "y = self.net(x)\n        return y if y.sum() > 0 else -y",
        "torch.randn(8, 16)",
        init="width: self.net = nn.Sequential(nn.LayerNorm(width), nn.Tanh())",
        init_inputs="16",
    )
    _, model_new, inputs = models(text, prove(text, tmp_path), tmp_path)
    model_new(*inputs)
    with pytest.raises(ValueError, match="built for ModelNew"):
        type(model_new)(17)


def test_a_part_that_knows_how_often_it_was_called_is_no_part(tmp_path: Path) -> None:
    counted = (
        "class Counted(nn.Module):\n    calls = 0\n\n    def forward(self, x):\n"
        "        self.calls += 1\n        return torch.tanh(x) * self.calls\n\n\n"
    )
    text = source(
        "y = self.net(x) + self.net(x + 1)\n        return y if y.sum() > 0 else -y",
        "torch.randn(8, 16)",
        init="self.net = Counted()",
    ).replace("class Model", f"{counted}class Model")
    candidate = propose(text)
    assert candidate.language == "torch" and "something else when traced" in candidate.source.splitlines()[0]
