"""Which layers `apply` leaves alone: those that compute something else than the reference, or do more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.dropin.exporting import LAYERS, NORM, python, winner

pytestmark = [pytest.mark.builds, pytest.mark.slow]  # by what they set up

Run = Callable[[str], None]
MLP = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 48)
        self.down = nn.Linear(48, 32, bias=False)

    def forward(self, x, y):
        return self.down(F.silu(self.up(x))) - y


def get_inputs():
    return [torch.randn(2, 4, 32), torch.randn(2, 4, 32)]


def get_init_inputs():
    return []
"""
LAYER = """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 48)
        self.down = nn.Linear(48, 32, bias=False)
        self.act = nn.SiLU()

    def forward(self, x, y):
        return self.down(self.act(self.up(x))) - y


def named(kind):
    kind.__qualname__ = kind.__mro__[1].__qualname__
    return kind


def why_left(layer):
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    kept = [dict(vars(module)) for module in layer.modules()]
    drawn = torch.get_rng_state()
    with pytest.raises(fused.NothingReplacedError) as why:
        fused.apply(layer)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    for module, had in zip(layer.modules(), kept, strict=True):
        assert vars(module).keys() == had.keys() and all(vars(module)[name] is had[name] for name in had)
    return str(why.value)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs tests over `LAYERS` and `LAYER` with a package for both, where there is no kernelwright."""
    out = tmp_path_factory.mktemp("exported") / "package"
    mlp = MLP.replace("class Model(", "class ModelNew(")
    chosen = [
        PackagedKernel("rms_norm", NORM, layers={"Norm": {"weight": "scale"}}),
        PackagedKernel("mlp", winner(MLP, mlp, "mlp"), layers={"MLP": {}}),
    ]
    write(chosen, out, "fused", measure=False)

    def call(tests: str) -> None:
        path = out.parent / "test_it.py"
        path.write_text(LAYERS + LAYER + tests)
        python(out, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))

    return call


def test_what_does_not_show_on_its_own_weights_and_usual_numbers(run: Run) -> None:
    run("""
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-8, 1e-7, 2e-6, 1e-5])
def test_another_epsilon(eps):
    assert "kernel's reference" in why_left(Norm(eps=eps))


def test_weights_that_are_zero():
    norm = Norm(eps=0.5)
    nn.init.zeros_(norm.scale)
    assert "kernel's reference" in why_left(norm)
    mlp = MLP()
    mlp.act = nn.GELU()
    nn.init.zeros_(mlp.down.weight)
    assert "kernel's reference" in why_left(mlp)


def test_small_weights():
    mlp = MLP()
    mlp.act = nn.Tanh()
    for each in mlp.parameters():
        nn.init.normal_(each, std=1e-3)
    assert "kernel's reference" in why_left(mlp)


def test_a_clamp():
    @named
    class Clamped(MLP):
        def forward(self, x, y):
            return self.down(self.act(self.up(x)).clamp(-7, 7)) - y

    @named
    class Safe(Norm):
        def forward(self, hidden):
            return super().forward(hidden).clamp(-10, 10)

    assert "kernel's reference" in why_left(Clamped()) and "kernel's reference" in why_left(Safe())


def test_inputs_that_are_exchanged():
    @named
    class Exchanged(MLP):
        def forward(self, y, x):
            return super().forward(x, y)

    assert "kernel's reference" in why_left(Exchanged())
    assert fused.apply(MLP()).replaced and fused.apply(Norm()).replaced
""")


@pytest.mark.slow
def test_gradients_that_are_others(run: Run) -> None:
    run("""
class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


def detached(norm, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps).detach() * norm.scale


def frozen(norm, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.scale.detach()


@torch.no_grad()
def without(norm, x):
    return Norm.forward(norm, x)


def reversed_(norm, x):
    return Norm.forward(norm, Reversal.apply(x))


@pytest.mark.parametrize("forward", [detached, frozen, without, reversed_])
def test_it(forward):
    layer = named(type("Other", (Norm,), {"forward": forward}))()
    assert "its gradient of" in why_left(layer)


def test_weights_are_frozen_or_have_hooks():
    called = []
    layer = Norm()
    layer.scale.requires_grad_(False)
    assert fused.apply(layer).replaced
    layer = Norm()
    layer.scale.register_hook(called.append)
    assert fused.apply(layer).replaced and not called and layer.scale.grad is None
""")


def test_what_does_more_than_to_compute(run: Run) -> None:
    run("""
import random


def layer(more):
    @named
    class More(Norm):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator()

        def forward(self, hidden):
            made = super().forward(hidden)
            return more(self, hidden, made)

    return More()


def aux_loss(self, hidden, made):
    self.aux_loss = hidden.square().mean()
    return made


def in_place(self, hidden, made):
    hidden.mul_(2)
    return made


def numpys(self, hidden, made):
    import numpy

    return made * 0 if self.training and numpy.random.rand() < 1e-9 else made


def its_own(self, hidden, made):
    return made * 0 if self.training and torch.rand((), generator=self.generator) < 1e-6 else made


@pytest.mark.parametrize(("more", "why"), [
    (aux_loss, "keeps state between calls (aux_loss of More)"),
    (in_place, "modifies its inputs"),
    (numpys, "draws random numbers"),
    (its_own, "draws random numbers"),
    (lambda self, hidden, made: (made,), "returns a tuple"),
    (lambda self, hidden, made: (made, None), "returns a tuple"),
    (lambda self, hidden, made: [made], "returns a list"),
    (lambda self, hidden, made: {"made": made}, "returns a dict"),
    (lambda self, hidden, made: None, "returns a NoneType"),
    (lambda self, hidden, made: made.as_subclass(type("Own", (torch.Tensor,), {})), "returns a Own"),
])
def test_it(more, why):
    assert why in why_left(layer(more))


def test_a_shape_that_is_kept_is_the_same_each_time():
    def shape(self, hidden, made):
        self.shape = hidden.shape
        return made

    assert fused.apply(layer(shape)).replaced
""")


def test_a_reference_that_returns_a_tuple_of_one(tmp_path: Path) -> None:
    source = kernels.changed(kernels.RMS_NORM, "* self.weight", "* self.weight,")
    with pytest.raises(UsageError, match="a tuple of one"):
        write(
            [PackagedKernel("rms_norm", winner(source, kernels.RMS_NORM_KERNEL, "x"))],
            tmp_path / "out",
            "fused",
        )
