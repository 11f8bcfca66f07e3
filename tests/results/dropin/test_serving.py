"""Packages take calls by name, several classes and functions, and report who computed."""

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin import layer_names
from kernelwright.results.dropin.apart import examined_apart
from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.layer_names import check_functions, check_layers, renamed
from kernelwright.results.dropin.package import write
from tests.helpers.dropin.exporting import LAYERS, NORM, SIGMOIDS, python, winner

pytestmark = [pytest.mark.builds, pytest.mark.slow]  # by what they set up

Run = Callable[[str], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a test over `LAYERS` with a package of two kernels, where there is no kernelwright."""
    out = tmp_path_factory.mktemp("exported") / "package"
    layers = {"Norm": {"weight": "scale"}, "Gained": {"weight": "gain"}}
    chosen = [
        PackagedKernel("rms_norm", NORM, layers),
        PackagedKernel("sigmoids", SIGMOIDS, functions=["gates.sigmoids"]),
    ]
    write(chosen, out, "fused", measure=False)

    def call(test: str) -> None:
        path = out.parent / "test_it.py"
        path.write_text(LAYERS + test)
        python(out, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))

    return call


def test_functions_have_constants_and_kernels_modes_in_which_they_are_called(tmp_path: Path) -> None:
    out, path = tmp_path / "package", tmp_path / "test_it.py"
    constants = {"scale": 1.0, "mode": "both"}
    chosen = PackagedKernel(
        "sigmoids", SIGMOIDS, functions=["gates.sigmoids"], constants=constants, slower=["training"]
    )
    write([chosen], out, "fused", measure=False)
    path.write_text("""
import sys
import types

import fused
import pytest
import torch
from torch import nn

GATES = '''
import torch

def sigmoids(x, scale, y, mode="one", *, eps=0.0):
    if mode != "both":
        return torch.sigmoid(scale * x) + eps
    return torch.sigmoid(scale * x) + eps, torch.sigmoid(scale * (x + y)) + eps
'''
gates = types.ModuleType("gates")
exec(GATES, vars(gates))
sys.modules["gates"] = gates
X, Y = torch.randn(8, 32), torch.randn(8, 32)


def calls():
    (found,) = fused.report(nn.Identity()).layers.values()
    return sum(found.by_kernel.values()), sum(found.by_layer.values())


def test_it():
    own = gates.sigmoids
    assert fused.apply(nn.Identity()).replaced == {"gates.sigmoids": "sigmoids"}
    torch.testing.assert_close(gates.sigmoids(X, 1.0, Y, "both"), own(X, 1.0, Y, "both"))
    torch.testing.assert_close(gates.sigmoids(X, y=Y, mode="both", scale=1.0), own(X, 1.0, Y, "both"))
    assert calls() == (2, 0)
    for args, named in (((X, 2.0, Y, "both"), {}), ((X, 1.0, Y), {}), ((X, 1.0, Y, "both"), {"eps": 1.0})):
        torch.testing.assert_close(gates.sigmoids(*args, **named), own(*args, **named))
    assert calls() == (2, 3)
    with pytest.raises(TypeError, match="missing"):
        gates.sigmoids(X, y=Y, mode="both")
    gates.sigmoids(X.clone().requires_grad_(), 1.0, Y, "both")
    assert "it was measured to be slower (training)" in str(fused.report(nn.Identity()))
    assert calls() == (2, 5)
""")
    python(out, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))


def test_calls_are_counted(run: Run) -> None:
    run("""
def test_eager():
    blocks = model(Block(), Block())
    fused.apply(blocks)
    for rows in (4, 4, 3, 2, 2):
        blocks(torch.randn(rows, 16, 64)).sum().backward()
    torch.func.grad(lambda x: blocks[1].norm(x).sum())(torch.randn(4, 16, 64))
    seen = fused.report(blocks)
    assert list(seen.layers) == ["0.norm", "1.norm"]
    first, second = seen.layers.values()
    assert first.by_kernel == second.by_kernel == {"rms_norm": 2} and sum(first.by_layer.values()) == 3
    assert second.by_layer.pop("a transform of torch.func is on") == 1
    assert second.by_layer == first.by_layer
    words = str(seen).splitlines()
    assert words[1].startswith("0.norm  rms_norm 2  3          1 times: x has shape (3, 16, 64)")
    assert len(words) == 3 and "2 times: x has shape (2, 16, 64)" in words[2]
    other = copy.deepcopy(blocks)
    other(torch.randn(4, 16, 64))
    assert fused.report(other).layers["0.norm"].by_kernel == {"rms_norm": 1}
    assert first.by_kernel == {"rms_norm": 2}
    fused.remove(blocks)
    assert not fused.report(blocks).layers


def test_compiled():
    blocks = model(Block())
    fused.apply(blocks)
    compiled = torch.compile(blocks, fullgraph=True, backend="eager")
    for rows in (4, 4, 3):
        compiled(torch.randn(rows, 16, 64))
    seen = fused.report(blocks)
    assert seen.traced == {"rms_norm": ("", "x has another shape, or a dynamic one")}
    assert "compiled, calls not counted: rms_norm was traced with it, without it (x has" in str(seen)
    assert seen.layers["0.norm"].by_kernel == {}


def test_many_reasons():
    norm = Norm()
    fused.apply(norm)
    for rows in range(5, 105):
        norm(torch.randn(rows, 64))
    by_layer = fused.report(norm).layers[""].by_layer
    assert len(by_layer) == 51 and by_layer["other reasons"] == 50
""")


def test_functions_are_replaced_in_their_modules(run: Run) -> None:
    run("""
import sys
import types

FUNCTION = '''
import torch

def sigmoids(x, y, scale=1.0, *, mask=None):
    return torch.sigmoid(scale * x), torch.sigmoid(scale * (x + y))

def gated(x, y, **named):
    first, second = sigmoids(x, y, **named)
    return first * second
'''


def made(name, source):
    module = types.ModuleType(name)
    exec(source, vars(module))
    sys.modules[name] = module
    return module


@pytest.fixture
def gates():
    module = made("gates", FUNCTION)
    made("others", "from gates import sigmoids as mine; ALL = {'sigmoids': mine}")
    yield module
    fused.remove(nn.Identity())
    del sys.modules["gates"], sys.modules["others"]


X, Y = torch.randn(8, 32), torch.randn(8, 32)


def used(function, *args, **named):
    with torch.profiler.profile() as seen:
        function(*args, **named)
    return sum(each.name.startswith("fused::sigmoids") for each in seen.events())


def test_callers_get_the_kernel(gates):
    own = gates.sigmoids
    report = fused.apply(nn.Identity())
    assert report.replaced == {"gates.sigmoids": "sigmoids"} and not report.left
    assert report.elsewhere == {"gates.sigmoids": ["others.ALL", "others.mine"]}
    assert "gates.sigmoids is itself under other names: others.ALL, others.mine" in str(report)
    assert used(gates.gated, X, Y) == 1 and used(gates.sigmoids, X, scale=1.0, y=Y) == 1
    for args, named in (((X, Y, 2.0), {}), ((X, Y), {"mask": X}), ((X[:4], Y[:4]), {}), ((Y, 3.0), {})):
        assert used(gates.sigmoids, *args, **named) == 0
        torch.testing.assert_close(gates.sigmoids(*args, **named), own(*args, **named))
    with pytest.raises(TypeError, match="missing"):
        gates.sigmoids(X)
    given = [each.clone().requires_grad_() for each in (X, Y)]
    ours, theirs = (torch.autograd.grad(f(*given)[1].sum(), given) for f in (gates.sigmoids, own))
    torch.testing.assert_close(ours, theirs)
    calls = fused.report(nn.Identity()).layers["gates.sigmoids"]
    assert calls.by_kernel == {"sigmoids": 3} and sum(calls.by_layer.values()) == 9
    kept = gates.sigmoids
    assert fused.remove(nn.Identity()) == 1 and gates.sigmoids is own
    assert used(kept, X, Y) == 0 and fused.remove(nn.Identity()) == 0
    fused.apply(nn.Identity())
    fused.apply(nn.Identity())
    assert fused.remove(nn.Identity()) == 1 and gates.sigmoids is own


def test_it_is_compiled_whole(gates):
    fused.apply(nn.Identity())
    compiled = torch.compile(gates.gated, fullgraph=True, backend="eager")
    assert used(compiled, X, Y) >= 1
    torch.testing.assert_close(compiled(X, Y), X.sigmoid() * (X + Y).sigmoid())
    torch.testing.assert_close(compiled(X[:4], Y[:4]), (X.sigmoid() * (X + Y).sigmoid())[:4])


def test_another_function_is_left(gates):
    gates.sigmoids = own = lambda x, y: (torch.tanh(x), torch.sigmoid(x + y))
    with pytest.raises(fused.NothingReplacedError, match="gates.sigmoids: in evaluation mode it computes something other"):
        fused.apply(nn.Identity())
    assert gates.sigmoids is own
    del gates.sigmoids
    with pytest.raises(fused.NothingReplacedError, match="gates.sigmoids: there is no such function"):
        fused.apply(nn.Identity())
""")


def test_arguments_may_be_given_by_name(run: Run) -> None:
    run("""
def test_it(caplog):
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    x = torch.randn(4, 16, 64)
    with torch.profiler.profile() as seen:
        torch.testing.assert_close(dropped(hidden=x), plain(x))
    assert any(each.name.startswith("fused::") for each in seen.events())
    compiled = torch.compile(dropped, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(hidden=x), plain(x))
    assert not [each for each in caplog.records if each.name == "fused"]
    for wrong in ({"x": x}, {"hidden": x, "more": 1}, {}):
        with pytest.raises(TypeError):
            dropped(**wrong)
""")


def test_one_kernel_computes_several_classes(run: Run) -> None:
    run("""
class Gained(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(64))

    def forward(self, x):
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Special(Gained):
    pass


def test_it():
    plain = model(Norm(), Gained(), Special())
    dropped = copy.deepcopy(plain)
    report = fused.apply(dropped)
    assert list(report.replaced) == ["0", "1"]
    assert report.left == {"2": "Special is a subclass of Gained: export the kernel with --layer Special, too"}
    x = torch.randn(4, 16, 64)
    torch.testing.assert_close(dropped(x), plain(x))
    with pytest.raises(fused.NothingReplacedError, match="Special is a subclass of Gained"):
        fused.apply(Special())
""")


@pytest.mark.slow
def test_a_readme_shows_how_its_format_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {
        Format.torch: "fused.report(model)",
        Format.hf: 'LocalLayerRepository(Path("fused"), layer_name="RMSNorm")',
        Format.torchtitan: "--override.imports fused.titan.rmsnorm --training.mixed_precision_param float32",
        Format.megatron: "fused.megatron.replaced(",
        Format.vllm: "vLLM finds the package by its entry point",
    }
    examined = examined_apart(SIGMOIDS.task, SIGMOIDS.candidate)
    monkeypatch.setattr("kernelwright.results.dropin.kernel_folder.examined_apart", lambda *_, **__: examined)
    chosen = [PackagedKernel("sigmoids", SIGMOIDS, {"torch.nn.RMSNorm": {}})]
    for form in Format:
        write(chosen, tmp_path / form, "fused", form, measure=False)
        text = (tmp_path / form / "README.md").read_text()
        assert shown[form] in text and "`torch.nn.RMSNorm`" in text
        assert not {each for each in Format if shown[each] in text} - {form, Format.torch}


@pytest.mark.slow
def test_a_function_has_no_parameters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file:rms_norm has parameters"):
        write([PackagedKernel("rms_norm", NORM, functions=["gates.norm"])], tmp_path / "out", "fused")


def test_names_of_layers_and_functions() -> None:
    assert doctest.testmod(layer_names) == (0, 1)
    both = ["LlamaRMSNorm", "T5LayerNorm"]
    assert renamed(both, ["weight=gain"]) == {name: {"weight": "gain"} for name in both}
    for wrong, why in (("weight", "invalid --rename weight"), ("Norm:a=b", "Norm:a=b is for no --layer")):
        with pytest.raises(UsageError, match=why):
            renamed(both, [wrong])
    check_layers(["torch.nn.RMSNorm", "RMSNorm", "no.such.module.Norm"], Format.torch)
    with pytest.raises(UsageError, match=r"torch\.nn has no layer RmsNorm — use RMSNorm"):
        check_layers(["torch.nn.RmsNorm"], Format.torch)
    with pytest.raises(UsageError, match=r"torch\.nn has no layer functional"):
        check_layers(["torch.nn.functional"], Format.torch)
    with pytest.raises(UsageError, match="its module is missing"):
        check_layers(["RMSNorm"], Format.torchtitan)
    check_functions(["torch.nn.functional.cross_entropy", "no.such.module.loss"])
    with pytest.raises(
        UsageError, match=r"torch\.nn\.functional has no function cross_entropi — use cross_entropy"
    ):
        check_functions(["torch.nn.functional.cross_entropi"])
    with pytest.raises(UsageError, match="its module is missing"):
        check_functions(["cross_entropy"])


ROPE = """
import torch
from torch import nn


def rotated(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Model(nn.Module):
    def forward(self, q, k, cos, sin):
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin


def get_inputs():
    q, k = (torch.randn(2, 16, heads, 16).transpose(1, 2) for heads in (4, 2))
    return [q, k, torch.rand(1, 16, 16), torch.rand(1, 16, 16)]


def get_init_inputs():
    return []
"""
LOSS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, source, target):
        return nn.functional.cross_entropy(source, target)


def get_inputs():
    return [torch.randn(32, 128), torch.randint(0, 128, (32,))]


def get_init_inputs():
    return []
"""
LLAMA = """
import copy

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaForCausalLM

import fused

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 128, (2, 16))


def step():
    loss = model(input_ids=tokens, labels=tokens).loss
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


plain = step()
report = fused.apply(model)
assert sorted(report.replaced.values()) == ["loss", "rope"], report
print(report)
for ours, theirs in zip(step(), plain, strict=True):
    torch.testing.assert_close(ours, theirs)
rope, loss = (calls for _, calls in sorted(fused.report(model).layers.items(), key=lambda each: "loss" in each[0]))
print(fused.report(model))
assert rope.by_kernel == {"rope": 2} and not rope.by_layer
assert loss.by_kernel == {"loss": 1} and not loss.by_layer
assert fused.remove(model) == 2
"""


@pytest.mark.slow
def test_a_llama_calls_functions_of_its_module(tmp_path: Path) -> None:
    where = "transformers.models.llama.modeling_llama.apply_rotary_pos_emb"
    chosen = []
    for name, task, function in (
        ("rope", ROPE, where),
        ("loss", LOSS, "transformers.loss.loss_utils.fixed_cross_entropy"),
    ):
        kernel = winner(task, task.replace("class Model(", "class ModelNew("), name)
        chosen.append(PackagedKernel(name, kernel, functions=[function]))
    write(chosen, tmp_path / "out", "fused", measure=False)
    python(tmp_path / "out", "-c", LLAMA)
