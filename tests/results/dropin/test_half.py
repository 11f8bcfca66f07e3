"""Packages in bf16 and fp16: what may be exported, and that a model in bf16 is trained by it."""

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.frontend.trace import trace_json
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Precision
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.runtime import accuracy
from kernelwright.results.dropin.runtime.accuracy import excess
from kernelwright.results.dropin.winner import Winner
from tests.helpers.dropin.exporting import python, winner
from tests.helpers.dropin.layer_tasks import MLP
from tests.helpers.dropin.small_kernels import changed

pytestmark = pytest.mark.builds

NORM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, hidden_states):
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(hidden_states.dtype)


def get_inputs():
    return [torch.randn(2, 16, 64)]


def get_init_inputs():
    return []
"""
ROUNDED_ONCE = changed(
    NORM,
    "        return self.weight * wide.to(hidden_states.dtype)",
    "        return (self.weight.float() * wide).to(hidden_states.dtype)",
).replace("class Model(", "class ModelNew(")


def half(source: str, kernel: str, name: str, precision: Precision = Precision.bf16) -> Winner:
    found = winner(source, kernel, name)
    return found.model_copy(update={"task": found.task.model_copy(update={"precision": precision})})


def test_errors_are_compared_with_those_of_the_stock_computation() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(64, 64, generator=generator).double()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        stock = exact.to(dtype)
        once_more = (stock * 3).div(3)  # two roundings more
        assert not excess(stock, stock, exact) and not excess(once_more, stock, exact)
        for wrong in (1.03 * exact, exact + 0.03, torch.where(exact > 2, 0.9 * exact, exact)):
            assert "from float64" in excess(wrong.to(dtype), stock, exact)
    nothing = torch.full_like(exact, float("nan"))
    assert "off by nan" in excess(nothing, exact, exact) and not excess(nothing, nothing, nothing)
    assert "torch.float32 of shape" in excess(exact.float(), exact, exact)
    assert doctest.testmod(accuracy) == (0, 3)
    assert not excess(exact > 0, exact > 0, exact > 0) and excess(exact < 0, exact > 0, exact > 0)


def test_a_kernel_that_is_off_by_some_percent_is_refused(tmp_path: Path) -> None:
    wrong = changed(ROUNDED_ONCE, "self.weight.float()", "1.03 * self.weight.float()")
    with pytest.raises(UsageError, match=r"less accurate than its reference: off by 0\.03 rms"):
        write([PackagedKernel("norm", half(NORM, wrong, "norm"))], tmp_path / "out", "fused")


LAYERS = """
import copy

import pytest
import torch
from torch import nn

import fused


class Norm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(64))
        self.eps = eps

    def forward(self, hidden_states):
        wide = hidden_states.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(hidden_states.dtype)


class Short(Norm):  # all in half precision
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Wide(Norm):  # which returns float32
    def forward(self, x):
        return super().forward(x.float())


Short.__qualname__ = Wide.__qualname__ = "Norm"


def why_left(layer):
    with pytest.raises(fused.NothingReplacedError) as why:
        fused.apply(layer)
    return str(why.value)
"""


@pytest.fixture(scope="module", params=[Precision.bf16, pytest.param(Precision.fp16, marks=pytest.mark.slow)])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Runs tests over `LAYERS` with a package in half precision, where there is no kernelwright."""
    out = tmp_path_factory.mktemp("exported") / "package"
    norm = half(NORM, ROUNDED_ONCE, "norm", request.param)
    write([PackagedKernel("norm", norm, layers={"Norm": {}})], out, "fused", measure=False)

    def call(tests: str) -> None:
        path = out.parent / "test_it.py"
        path.write_text(
            LAYERS + f"\nHALF = {torch.bfloat16 if request.param == 'bf16' else torch.float16}\n" + tests
        )
        python(
            out,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *([str(path)] if tests else ["--pyargs", "fused"]),
        )

    return call


@pytest.mark.slow
def test_the_package_s_own_tests(run: Callable[[str], None]) -> None:
    run("")


@pytest.mark.slow
def test_a_reference_that_was_traced_in_half_precision_rounds_where_the_layer_did(tmp_path: Path) -> None:
    traced = changed(NORM, "wide.to(hidden_states.dtype)", "wide.to(torch.bfloat16)")
    kernel = PackagedKernel("norm", half(traced, ROUNDED_ONCE, "norm"), layers={"Norm": {}})
    write([kernel], tmp_path / "out", "fused", measure=False)
    script = """
assert list(fused.apply(nn.Sequential(Norm().bfloat16())).replaced) == ["0"]


class Detached(Norm):
    def forward(self, x):
        return super().forward(x.detach())


Detached.__qualname__ = "Norm"
assert "its gradient of hidden_states differs" in why_left(nn.Sequential(Detached().bfloat16()))
"""
    python(tmp_path / "out", "-c", LAYERS + script)


def test_layers_in_half_precision(run: Callable[[str], None]) -> None:
    run("""
@pytest.mark.parametrize("kind", [Norm, Short])
def test_they_are_replaced_and_trained(kind):
    layer = kind().to(HALF)
    stock, exact = copy.deepcopy(layer), copy.deepcopy(layer).double()
    fused.apply(layer)
    x = torch.randn(2, 16, 64).to(HALF)
    found = []
    for each in (layer, stock, exact):
        given = x.to(each.weight.dtype).requires_grad_()
        made = each(given)
        found.append([made, *torch.autograd.grad(made.square().sum(), [given, each.weight])])
    from fused.runtime.accuracy import excess

    assert [excess(*each) for each in zip(*found)] == ["", "", ""]
    with torch.profiler.profile() as seen, torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert any(each.name.startswith("fused::") for each in seen.events())  # which autocast leaves as it is


def test_others_are_left():
    assert "float32" in why_left(Norm())
    assert "instead of" in why_left(Wide().to(HALF))
    for eps in (1e-5, 1e-7, 2e-6):
        assert "kernel's reference" in why_left(Norm(eps).to(HALF))
""")


LLAMA = """
import copy

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaForCausalLM

import fused
from fused.runtime.accuracy import excess


def test_it():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )
    stock = LlamaForCausalLM(config).bfloat16()
    exact, dropped = copy.deepcopy(stock).double(), copy.deepcopy(stock)
    report = fused.apply(dropped)
    assert len(report.replaced) == 7 and not report.left, report
    tokens = torch.randint(0, 128, (2, 16))
    with torch.profiler.profile() as seen:
        dropped(tokens)
    assert sum(each.name.startswith("fused::") for each in seen.events()) == 7
    found = []
    for each in (dropped, stock, exact):
        loss = each(tokens, labels=tokens).loss
        found.append([loss, *torch.autograd.grad(loss, list(each.parameters()))])
    assert not [why for each in zip(*found) if (why := excess(*each))]
    found = []
    for each in (dropped, stock):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(tokens, labels=tokens).loss
        loss.backward()
        found.append([loss, *(weight.grad for weight in each.parameters())])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * float(theirs.abs().max()))
"""


@pytest.mark.slow
def test_a_llama_in_bf16_is_trained(tmp_path: Path) -> None:
    """Kernels are the builtin coder's; under autocast the norms' stay, and the MLPs' may not."""
    coder = BuiltinCoder(lambda task: Graph.from_json(trace_json(task.source, task.precision)))
    chosen = []
    mlp = MLP.replace("32, 48", "64, 96").replace("48, 32", "96, 64").replace("2, 16, 32", "2, 16, 64")
    for name, source, layer in (("norm", NORM, "LlamaRMSNorm"), ("mlp", mlp, "LlamaMLP")):
        made = half(source, "", name)
        candidate = coder.propose(made.task, [], None)
        assert candidate.language == "cpp"
        named = {"up.weight": "up_proj.weight", "gate.weight": "gate_proj.weight"} if name == "mlp" else {}
        named |= {"down.weight": "down_proj.weight"} if name == "mlp" else {}
        made = made.model_copy(update={"candidate": candidate})
        chosen.append(PackagedKernel(name, made, layers={layer: named}))
    write(chosen, tmp_path / "out", "fused", measure=False)
    (tmp_path / "test_it.py").write_text(LLAMA)
    python(tmp_path / "out", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_it.py"))
