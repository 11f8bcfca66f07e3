"""A drop-in where training code puts it: autocast, other default dtypes and devices, adapters, hooks, both modes,
several lengths. Outputs, losses and gradients are the stock model's each time.

Of a norm, an MLP and a layer with dropout, in a package of the builtin coder's kernels, as users export them.
"""

from collections.abc import Callable

import pytest

from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.frontend.trace import trace_json
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin.exporting import python, winner
from tests.helpers.dropin.layer_tasks import MLP, NORM, OUTPUT

pytestmark = [pytest.mark.builds, pytest.mark.slow]  # by what they set up

LAYERS = """
import copy
import gc
import logging
import weakref

import pytest
import torch
from torch import nn

import fused


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32) + 0.5)
        self.eps = 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 48, bias=False)
        self.up = nn.Linear(32, 48, bias=False)
        self.down = nn.Linear(48, 32, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Output(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.dense = nn.Linear(32, 32)
        self.dropout = nn.Dropout(p)
        self.norm = nn.LayerNorm(32)

    def forward(self, x, y):
        return self.norm(self.dropout(self.dense(x)) + y)


class Block(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.norm = Norm()
        self.mlp = MLP()
        self.output = Output(p)

    def forward(self, x):
        return self.output(self.mlp(self.norm(x)), x)


X = torch.randn(2, 16, 32)


def both(p=0.0):
    plain = Block(p)
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    return dropped, plain


def step(model, x=X, seed=0):
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    out = model(x)
    loss = out.float().square().mean()
    weights = [each for each in model.parameters() if each.requires_grad]
    return [out, loss, *torch.autograd.grad(loss, [x, *weights])]


def assert_same(dropped, plain, x=X):
    for ours, theirs in zip(step(dropped, x), step(plain, x), strict=True):
        assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def used(model, x=X):
    with torch.profiler.profile() as seen, torch.no_grad():
        model(x)
    return sorted(each.name.partition("::")[2][:-13] for each in seen.events() if each.name.startswith("fused::"))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Runs tests over `LAYERS` with the package, where there is no kernelwright."""
    out = tmp_path_factory.mktemp("exported") / "package"
    coder = BuiltinCoder(lambda task: Graph.from_json(trace_json(task.source, task.precision)))
    chosen = []
    for name, source, layer in (("rms", NORM, "Norm"), ("swiglu", MLP, "MLP"), ("out", OUTPUT, "Output")):
        made = winner(source, "", name)
        candidate = coder.propose(made.task, [], None)
        assert candidate.language == "cpp"
        chosen.append(
            PackagedKernel(name, made.model_copy(update={"candidate": candidate}), layers={layer: {}})
        )
    write(chosen, out, "fused", measure=False)

    def call(tests: str) -> None:
        path = out.parent / "test_it.py"
        path.write_text(LAYERS + tests)
        python(out, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))

    return call


@pytest.mark.slow
def test_states_of_torch(run: Callable[[str], None]) -> None:
    run("""
def test_kernels_compute_where_they_were_verified():
    dropped, plain = both()
    assert used(dropped) == ["out", "rms", "swiglu"]
    assert_same(dropped, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    dropped, plain = both()
    with torch.autocast("cpu", dtype):
        assert_same(dropped, plain)
        assert used(dropped) == ["rms"]  # of which autocast leaves everything in float32


def test_a_backward_under_autocast():
    dropped, plain = both()
    found = []
    for model in (dropped, plain):
        x = X.clone().requires_grad_()
        loss = model(x).square().mean()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        found.append([x.grad, *(each.grad for each in model.parameters())])
    exact = [each.abs().max() for each in found[1]]  # stock autograd multiplies bfloat16 numbers there
    for ours, theirs, scale in zip(*found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * scale.item())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_default_dtype(dtype):
    dropped, plain = both()
    torch.set_default_dtype(dtype)
    try:
        assert_same(dropped, plain)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_default_device():
    dropped, plain = both()
    torch.set_default_device("meta")
    try:
        assert_same(dropped, plain)
    finally:
        torch.set_default_device(None)
    with torch.device("cpu"):
        assert used(dropped) == ["out", "rms", "swiglu"]


def test_a_forward_mode_derivative_is_not_lost():
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        tangents = [torch.autograd.forward_ad.unpack_dual(each.norm(x)).tangent for each in both()]
    torch.testing.assert_close(*tangents)


def test_a_trace_holds_what_is_computed():
    dropped, plain = both()
    with torch.no_grad():
        traced = torch.jit.trace(dropped, X, check_trace=False)
        torch.testing.assert_close(traced(X + 1), plain(X + 1))


def test_what_is_no_plain_memory():
    dropped, plain = both()
    negative = X._neg_view()  # as the imaginary part of a conjugate is
    assert negative.is_neg() and negative.is_contiguous()
    torch.testing.assert_close(dropped.norm(negative), plain.norm(negative))


def test_a_tensor_that_the_kernel_would_misread_is_refused():
    import sys

    lib = sys.modules["fused.swiglu.kernel"].lib
    (function,) = [value for value in vars(lib).values() if callable(value)]
    right = [torch.ones(2, 16, 48) for _ in range(3)]
    function(*right)
    for wrong in (right[0].bfloat16(), right[0].transpose(0, 1), right[0].to("meta")):
        with pytest.raises(TypeError, match="expected contiguous tensors of the kernel's dtypes on its device"):
            function(wrong, *right[1:])
""")


@pytest.mark.slow
def test_a_package_is_the_same_whatever_the_state_it_is_imported_in(run: Callable[[str], None]) -> None:
    run("""
def test_it():
    import subprocess
    import sys

    script = '''
import torch

torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
torch.set_default_device("meta")
import fused

assert torch.get_default_dtype() is torch.bfloat16 and torch.empty(1).is_meta
torch.set_default_device(None)
torch.set_default_dtype(torch.float32)
drawn = torch.rand(())
torch.manual_seed(0)
assert torch.rand(()) == drawn
x, weight = torch.randn(2, 16, 32), torch.rand(32)
assert fused.rms.check(x, weight) == (True, "")
torch.testing.assert_close(fused.rms(x, weight), fused.rms.by_reference(x, weight))
'''
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
""")


@pytest.mark.slow
def test_what_is_done_to_submodules_after_apply(run: Callable[[str], None]) -> None:
    run("""
class Adapted(nn.Module):
    '''As an adapter of peft: the weight of what it adapts is its own.'''

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def adapted(model):
    torch.manual_seed(1)
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        for each in (model.mlp.gate, model.mlp.down):
            each.requires_grad_(False)
        model.mlp.gate, model.mlp.down = Adapted(model.mlp.gate), Adapted(model.mlp.down)
        return model
    return inject_adapter_in_model(LoraConfig(r=2, target_modules=["gate", "down"], init_lora_weights=False), model)


def test_adapters_after_apply(caplog):
    dropped, plain = both()
    for _ in range(2):
        assert_same(adapted(dropped) if not _ else dropped, adapted(plain) if not _ else plain)
    assert used(dropped) == ["out", "rms"]
    assert caplog.text.count("gate is another module now") == 1


def test_adapters_before_apply():
    plain = adapted(Block())
    dropped = copy.deepcopy(plain)
    report = fused.apply(dropped)
    assert set(report.replaced) == {"norm", "output"} and "does not take" in report.left["mlp"]
    assert_same(dropped, plain)


def changed_by(change):
    dropped, plain = both()
    for each in (dropped, plain):
        change(each)
    assert_same(dropped, plain)
    assert "swiglu" not in used(dropped)


def test_another_activation():
    changed_by(lambda model: setattr(model.mlp, "act", nn.GELU()))


def test_another_setting():
    dropped, plain = both()
    dropped.norm.eps = plain.norm.eps = 0.5
    dropped.output.norm.eps = plain.output.norm.eps = 0.5
    assert_same(dropped, plain)
    assert used(dropped) == ["swiglu"]


def test_a_new_parameter():
    changed_by(lambda model: setattr(model.mlp.up, "bias", nn.Parameter(torch.ones(48))))


def test_another_forward(monkeypatch):
    changed_by(lambda model: setattr(model.mlp.gate, "forward", lambda x, w=model.mlp.gate.weight: x @ w.T + 1))
    dropped, plain = both()
    own = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, x: own(self, x) + 1)
    assert_same(dropped, plain)


def test_parametrizations():
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    changed_by(lambda model: nn.utils.parametrize.register_parametrization(model.mlp.gate, "weight", Doubled()))
    changed_by(lambda model: nn.utils.parametrizations.weight_norm(model.mlp.down))
    dropped, plain = both()
    for each in (dropped, plain):
        nn.utils.parametrize.register_parametrization(each.norm, "weight", Doubled())
    assert_same(dropped, plain)


def test_hooks():
    dropped, plain = both()
    called = {dropped: [], plain: []}
    handles = []
    for model, calls in called.items():
        for name in ("mlp.gate", "output.dense", "norm"):
            each = model.get_submodule(name)
            handles += [
                each.register_forward_pre_hook(lambda *_, name=name, calls=calls: calls.append((name, "before"))),
                each.register_forward_hook(lambda *_, name=name, calls=calls: calls.append((name, "after"))),
                each.register_full_backward_hook(lambda *_, name=name, calls=calls: calls.append((name, "back"))),
            ]
    assert_same(dropped, plain)
    assert called[dropped] == called[plain] and len(called[plain]) == 9
    assert used(dropped) == ["rms"]  # a hook on the layer itself is called around its kernel
    for handle in handles:
        handle.remove()
    assert used(dropped) == ["out", "rms", "swiglu"]
    called = []
    with nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(type(module).__name__)):
        dropped(X)
    assert called == ["Norm", "Linear", "SiLU", "Linear", "Linear", "MLP", "Linear", "Dropout", "LayerNorm", "Output", "Block"]


def test_hooks_before_apply():
    model = Block()
    model.mlp.gate.register_forward_hook(lambda *_: None)
    assert fused.apply(model).left == {"mlp": "gate has hooks"}


def test_weights_that_are_frozen_tied_or_of_another_dtype():
    dropped, plain = both()
    for each in (dropped, plain):
        each.mlp.gate.weight.requires_grad_(False)
        each.mlp.up.weight = each.mlp.gate.weight
    assert used(dropped) == ["out", "rms", "swiglu"]
    assert_same(dropped, plain)
    for each in (dropped, plain):
        each.mlp.down = nn.Linear(48, 32, bias=False).requires_grad_(False)
        nn.init.constant_(each.mlp.down.weight, 0.1)
    assert_same(dropped, plain)
    for each in (dropped, plain):
        each.bfloat16()
    assert_same(dropped, plain, X.bfloat16())
    assert used(dropped, X.bfloat16()) == []


def test_a_deep_copy_looks_at_its_own_submodules():
    dropped, plain = both()
    other = copy.deepcopy(dropped)
    dropped.mlp.act = nn.GELU()
    assert used(other) == ["out", "rms", "swiglu"]
    assert_same(other, plain)


def test_products_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    counted = []
    for model in both():
        with FlopCounterMode(display=False) as counter:
            model(X).square().mean().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] > 0


def test_weights_do_not_outlive_the_model():
    dropped, _ = both()
    with torch.no_grad():
        dropped(X)
    step(dropped)
    kept = [weakref.ref(each) for each in dropped.parameters()]
    del dropped
    gc.collect()
    assert not any(each() is not None for each in kept)
""")


def test_outputs_may_be_written_into(run: Callable[[str], None]) -> None:
    run("""
@pytest.mark.parametrize("trained", [False, True])
def test_it(trained):
    found = []
    for model in both():
        model.requires_grad_(trained)
        more = nn.Parameter(torch.ones(32))
        made = []
        for layer in (model.norm, model.mlp, lambda x: model.output(x, x)):
            made.append(layer(X))
            made[-1] += more
        sum(made).square().sum().backward()
        found.append([*made, more.grad, *(each.grad for each in model.parameters() if trained)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
""")


def test_gradients_that_nobody_wants_cost_no_product(run: Callable[[str], None]) -> None:
    run("""
def products_of(function):
    with torch.profiler.profile() as seen:
        function()
    return sum(each.name in ("aten::mm", "aten::addmm") for each in seen.events())


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("trained", ["gate up down", "down", "gate", ""])
def test_it(trained, of_input, direct, monkeypatch):
    if direct:  # as where no profiler looks
        for module in (fused.runtime.operators, fused.runtime.kernel):
            monkeypatch.setattr(module, "unseen", lambda: True)
    counts, found = [], []
    for model in both():
        for name, each in model.mlp.named_children():
            each.requires_grad_(name in trained.split())
        x = X.clone().requires_grad_(of_input)
        loss = model.mlp(x).square().sum()
        if not loss.requires_grad:
            return
        counts.append(products_of(loss.backward))
        found.append([x.grad, *(each.grad for each in model.mlp.parameters())])
    assert counts[0] - counts[1] == 2  # of the forward, which are computed again
    for ours, theirs in zip(*found):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_compiled():
    dropped, plain = both()
    counts = []
    for model in (dropped, plain):
        model.mlp.requires_grad_(False)
        compiled = torch.compile(model.mlp, backend="aot_eager", fullgraph=True)
        x = X.clone().requires_grad_()
        counts.append(products_of(compiled(x).square().sum().backward))
    assert counts[0] - counts[1] == 2


@pytest.mark.parametrize("trained", ["x gate_weight up_weight down_weight", "x", "down_weight"])
@pytest.mark.parametrize("name", ["swiglu", "out", "rms"])
def test_flops_are_those_of_the_stock_layer(name, trained):
    from torch.utils.flop_counter import FlopCounterMode

    kernel, counts = fused.KERNELS[name], []
    for call in (kernel, kernel.by_reference):
        given = [each.like(torch.Generator()) for each in kernel.arguments]
        for tensor, each in zip(given, kernel.arguments):
            tensor.requires_grad_(each.name in trained.split() or name == "out")
        with FlopCounterMode(display=False) as counter:
            made = call(*given)
            if made.requires_grad:
                made.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] and (counts[0] > 0) == (name != "rms")


def test_what_is_not_needed_is_not_kept():
    dropped, _ = both()
    kept = []
    for each in (dropped.mlp, dropped.mlp.gate, dropped.mlp.up):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            dropped.mlp(X)
        kept.append(sum(sizes))
        each.requires_grad_(False)
        dropped.mlp.down.requires_grad_(True)
    weight = dropped.mlp.down.weight.numel()
    assert kept[0] == 3 * weight + X.numel() and kept[1] == kept[2] == kept[0] - weight
""")


def test_modes(run: Callable[[str], None]) -> None:
    run("""
@pytest.mark.parametrize("training", [False, True])
def test_a_dropout_stays(training):
    plain = Block(p=0.5).train(training)
    dropped = copy.deepcopy(plain)
    report = fused.apply(dropped)
    assert set(report.replaced) == {"norm", "mlp"} and "draws random numbers" in report.left["output"]
    for mode in (True, False):
        plain.train(mode), dropped.train(mode)
        assert_same(dropped, plain)
        assert torch.equal(step(dropped, seed=0)[0], step(dropped, seed=1)[0]) == (not mode)


def test_without_one_both_modes_are_the_kernel_s():
    dropped, plain = both(p=0.0)
    for mode in (True, False):
        plain.train(mode), dropped.train(mode)
        assert used(dropped) == ["out", "rms", "swiglu"]
        assert_same(dropped, plain)


def test_a_rare_draw_is_seen():
    import random

    class Skipping(Norm):
        def forward(self, x):
            if self.training and random.random() < 1e-9:
                return x
            return super().forward(x)

    Skipping.__qualname__ = "Norm"
    state = random.getstate()
    with pytest.raises(fused.NothingReplacedError, match="in training mode it draws random numbers"):
        fused.apply(Skipping().eval())
    assert random.getstate() == state


def test_apply_leaves_no_trace():
    class Noting(MLP):
        shape = None

        def forward(self, x):
            self.shape = x.shape
            return super().forward(x)

    Noting.__qualname__ = "MLP"
    layer = Noting().train()
    layer.act.eval()
    drawn = torch.get_rng_state()
    fused.apply(layer)
    assert layer.shape is None
    assert [each.training for each in layer.modules()] == [True, True, True, True, False]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_buffer_that_the_kernel_knows_nothing_of():
    layer = Norm()
    layer.register_buffer("scale", torch.ones(()))
    with pytest.raises(fused.NothingReplacedError, match="it has scale, which the kernel does not take"):
        fused.apply(layer)
""")


@pytest.mark.slow
def test_three_lengths_are_compiled_whole(run: Callable[[str], None]) -> None:
    run("""
@pytest.mark.parametrize("marked", [False, True], ids=["automatic", "mark_dynamic"])
def test_lengths(marked):
    dropped, plain = both()
    torch.compiler.reset()
    compiled = torch.compile(dropped, fullgraph=True, backend="aot_eager")
    for length in (16, 12, 7):
        x = torch.randn(2, length, 32)
        if marked:
            torch._dynamo.mark_dynamic(x, 1)
        loss = compiled(x).square().mean()
        ours = [loss, *torch.autograd.grad(loss, list(dropped.parameters()))]
        loss = plain(x).square().mean()
        theirs = [loss, *torch.autograd.grad(loss, list(plain.parameters()))]
        for mine, right in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


def test_the_verified_length_is_the_kernel_s_after_another_one():
    graphs = []

    def backend(graph, inputs):
        graphs.append("fused" in graph.code)
        return graph

    dropped, plain = both()
    torch.compiler.reset()
    compiled = torch.compile(dropped, fullgraph=True, backend=backend)
    for length in (16, 12, 7, 16):
        with torch.no_grad():
            compiled(torch.randn(2, length, 32))
    assert graphs == [True, False]


def test_states_and_changes_after_it_was_compiled():
    dropped, plain = both()
    torch.compiler.reset()
    compiled = torch.compile(dropped, fullgraph=True, backend="aot_eager")
    assert_same(compiled, plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(compiled, plain)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(compiled, plain)
    finally:
        torch.set_default_dtype(torch.float32)
    for each in (dropped, plain):
        each.mlp.act = nn.GELU()
        each.norm.eps = 0.5
    assert_same(compiled, plain)
""")
