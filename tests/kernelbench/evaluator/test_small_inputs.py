"""Small inputs: they show another epsilon, and accept what is as exact as at the task's own size."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from kernelwright.kernelbench.evaluator.correctness.families import rewrite
from kernelwright.kernelbench.evaluator.correctness.oracle import Oracle
from kernelwright.kernelbench.evaluator.reference.draws import Draws

Kernel = Callable[..., torch.Tensor]
TASK = """
import torch
from torch.nn import functional
class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}
def get_inputs():
    return [torch.randn(32, 768)]
def get_init_inputs():
    return []
"""
RMS = "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)"


def errors(forward: str, kernel: Kernel, family: str, draws: int = 3) -> list[float]:
    found = []
    with torch.no_grad():
        oracle = Oracle(TASK.format(forward=forward), "fp32", secrets.randbits(40), vary_weights=True)
        oracle.slots = [[tensor.clone() for tensor in oracle._tensors(2)]]
        for _ in range(draws):
            oracle.fill([0], [secrets.randbits(60)], family)
            oracle.expect(0, None, rate=False)
            error = oracle.judged([kernel(*oracle.slots[0])])["error"]
            found.append(float("inf") if error is None else error)
    return found


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


WRONG: dict[str, tuple[str, Kernel]] = {
    "layer norm, 1e-6": (
        "functional.layer_norm(x, (768,), eps=1e-5)",
        lambda x: functional.layer_norm(x, (768,), eps=1e-6),
    ),
    "layer norm, 1e-5": (
        "functional.layer_norm(x, (768,), eps=1e-12)",
        lambda x: functional.layer_norm(x, (768,), eps=1e-5),
    ),
    "rms norm, none": (RMS, lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True))),
    "rms norm, outside": (RMS, lambda x: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)),
    "zeros": ("functional.silu(x)", lambda x: functional.silu(x) * (x.abs().max() > 1e-3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_epsilon_shows(name: str) -> None:
    assert all(error < 1 for error in errors(*WRONG[name], "task"))
    assert all(error > 10 for error in errors(*WRONG[name], "small"))


def tanh(x: torch.Tensor) -> torch.Tensor:
    return 1 - 2 / (torch.exp(2 * x) + 1)


HONEST: dict[str, tuple[str, Kernel]] = {
    "tanh": ("torch.tanh(x)", tanh),
    "gelu": (
        "functional.gelu(x, approximate='tanh')",
        lambda x: 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x**3))),
    ),
    "elu": ("functional.elu(x)", lambda x: torch.where(x > 0, x, torch.exp(x) - 1)),
    "mish": ("functional.mish(x)", lambda x: x * tanh(torch.log(1 + torch.exp(x)))),
    "softplus": ("functional.softplus(x)", lambda x: torch.log(1 + torch.exp(x))),
    "tanh, normalized": (
        "functional.layer_norm(torch.tanh(x), (768,))",
        lambda x: functional.layer_norm(tanh(x), (768,)),
    ),
    "normalize": ("functional.normalize(x, dim=1)", lambda x: x / (x.norm(dim=1, keepdim=True) + 1e-12)),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_is_as_exact_as_at_the_usual_size_is_right(name: str) -> None:
    assert all(error < 1 for family in ("task", "small") for error in errors(*HONEST[name], family))


def test_one_of_several_inputs_may_be_small() -> None:
    """A product of two small inputs would be too small to show anything."""
    kinds = set()
    for seed in range(20):
        inputs = [torch.ones(4, 4), torch.ones(4, dtype=torch.float16), torch.arange(4)]
        rewrite(inputs, ["real", "real", "index"], "small", Draws(seed), distinct=False)
        kinds.add(tuple(bool(tensor.max() < 1) for tensor in inputs))
        assert float(inputs[0].max()) in (1, 2**-13, 2**-14, 2**-15)
        assert float(inputs[1].max()) in (1, 2**-5, 2**-6, 2**-7)
    assert kinds == {(True, True, False), (True, False, False), (False, True, False)}
