"""Drop-in packages: what an export writes, and that it does what it says without kernelwright."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.dropin.exporting import LAYERS, NORM, SIGMOIDS, python, winner

pytestmark = pytest.mark.builds

Run = Callable[[str], None]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package of two kernels, `fused`."""
    out = tmp_path_factory.mktemp("exported") / "package"
    chosen = [
        PackagedKernel("rms_norm", NORM, layers={"Norm": {"weight": "scale"}}),
        PackagedKernel("sigmoids", SIGMOIDS),
    ]
    write(chosen, out, "fused", measure=False)
    return out


@pytest.fixture
def package(exported: Path, tmp_path: Path) -> Path:
    """A copy of it that may be spoilt."""
    shutil.copytree(exported, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


@pytest.fixture
def run(exported: Path, tmp_path: Path) -> Run:
    """Runs a test over `LAYERS` where there is no kernelwright."""

    def call(test: str) -> None:
        path = tmp_path / "test_it.py"
        path.write_text(LAYERS + test)
        python(exported, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))

    return call


@pytest.mark.slow
def test_its_own_tests_pass_without_kernelwright(exported: Path) -> None:
    said = python(exported, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    assert "passed" in said and "skipped" not in said
    files = [p.read_text() for p in (exported / "fused").rglob("*.py")]
    assert not any("import kernelbench" in text or "from kernelbench" in text for text in files)


def test_a_kernel_that_includes_the_math_header_needs_no_header(exported: Path) -> None:
    sources = [path.read_text() for path in (exported / "fused").rglob("*.py")]
    assert any("#include <kernelwright/math.h>" in source for source in sources)
    assert not list(exported.rglob("math.h"))
    test = "import torch; from fused.sigmoids.kernel import ModelNew; x, y = torch.randn(2, 100)\n"
    test += (
        "made = ModelNew()(x, y); torch.testing.assert_close(list(made), [x.sigmoid(), (x + y).sigmoid()])"
    )
    python(exported, "-c", test)


def test_metadata_says_where_it_comes_from(exported: Path) -> None:
    metadata = json.loads((exported / "fused" / "metadata.json").read_text())
    norm, sigmoids = metadata["kernels"]
    assert norm["provenance"]["candidate_sha256"] == NORM.candidate.sha256
    assert norm["provenance"]["evaluation"]["verdict"] == "correct"
    assert norm["backward"]["way"] == "recompute" and norm["backward"]["takes"] == [
        "grad_output",
        "x",
        "weight",
    ]
    assert sigmoids["backward"]["way"] == "saved"
    assert sigmoids["backward"]["uses"] == ["output_0", "output_1"]


def test_layers_are_replaced_and_put_back(run: Run) -> None:
    run("""
def test_it():
    plain = model(Block(), Block())
    dropped = copy.deepcopy(plain)
    report = fused.apply(dropped)
    assert report.replaced == {"0.norm": "rms_norm", "1.norm": "rms_norm"} and not report.left
    x = torch.randn(4, 16, 64)
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(dropped(x), plain(x))
    assert sum(e.count for e in profile.key_averages() if e.key.startswith("fused::rms_norm")) == 2
    plain(x).square().sum().backward()
    dropped(x).square().sum().backward()
    for ours, theirs in zip(dropped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert dropped.state_dict().keys() == plain.state_dict().keys()
    assert fused.remove(dropped) == 2 and fused.remove(dropped) == 0
    assert "forward" not in vars(dropped[0].norm)
""")


def test_a_layer_is_left_with_the_reason(run: Run) -> None:
    run("""
def test_it():
    mixed = model(Block(), Block(eps=0.5), Block().double())
    mixed[0].extra = Norm(width=32)
    report = fused.apply(mixed)
    assert list(report.replaced) == ["0.norm"]
    assert "shape (32,)" in report.left["0.extra"]
    assert "kernel's reference" in report.left["1.norm"]
    assert "torch.float64" in report.left["2.norm"]
    assert "1 replaced, 3 left" in str(report)
""")


def test_other_calls_go_to_the_layer_and_are_logged_once(run: Run) -> None:
    run("""
def test_it(caplog):
    block = model(Block())
    fused.apply(block)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            block(torch.randn(2, 16, 64))
    assert len(caplog.records) == 1 and "shape (2, 16, 64)" in caplog.text
""")


def test_nothing_replaced_is_an_error(run: Run) -> None:
    run("""
def test_it():
    with pytest.raises(fused.NothingReplacedError, match="no such layer"):
        fused.apply(nn.Linear(4, 4))
    with pytest.raises(fused.NothingReplacedError, match="kernel's reference"):
        fused.apply(model(Block(eps=0.5)))
""")


def test_two_packages_for_one_layer_are_an_error(run: Run) -> None:
    run("""
def test_it():
    block = model(Block())
    from fused.runtime.swap import apply
    apply(block, list(fused.KERNELS.values()), "other")
    with pytest.raises(fused.ConflictError, match="0.norm is already computed by other"):
        fused.apply(block)
    fused.apply(model(Block()))
""")


def test_a_deep_copy_has_its_own_weights(run: Run) -> None:
    run("""
def test_it():
    block = model(Block())
    fused.apply(block)
    other = copy.deepcopy(block)
    with torch.no_grad():
        block[0].norm.scale.zero_()
        x = torch.randn(4, 16, 64)
        assert not block[0].norm(x).any() and other[0].norm(x).any()
    assert fused.remove(other) == 1 and fused.remove(block) == 1
""")


def test_operators_are_called_only_where_somebody_looks(run: Run) -> None:
    run("""
from torch.utils._python_dispatch import TorchDispatchMode


class Looking(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_it(monkeypatch):
    called = []
    kernel = fused.rms_norm
    operator = kernel.operator
    monkeypatch.setattr(kernel, "operator", lambda *tensors: called.append(1) or operator(*tensors))
    x, weight = torch.randn(4, 16, 64), torch.rand(64, requires_grad=True)
    plain = kernel(x, weight)
    plain.sum().backward()
    assert not called and weight.grad.any()
    with Looking():
        torch.testing.assert_close(kernel(x, weight), plain)
    with torch.profiler.profile():
        kernel(x, weight)
    assert len(called) == 2
    wanted = x.clone().requires_grad_()
    kernel(wanted, weight).sum().backward()
    found = torch.func.grad(lambda x: kernel(x, weight.detach()).sum())(x)
    torch.testing.assert_close(found, wanted.grad)
    assert len(called) == 2
""")


def test_looking_at_layers_draws_no_numbers(run: Run) -> None:
    run("""
class Noisy(Norm):
    def forward(self, hidden):
        return nn.functional.dropout(super().forward(hidden))


Noisy.__qualname__ = "Norm"


def test_it():
    before = torch.get_rng_state()
    with pytest.raises(fused.NothingReplacedError):
        fused.apply(Noisy())
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    Noisy()  # its weight is random
    assert torch.equal(after, torch.get_rng_state())
""")


@pytest.mark.slow
def test_a_model_is_compiled_whole(run: Run) -> None:
    run("""
def test_it():
    plain = model(Block(), Block())
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    compiled = torch.compile(dropped, fullgraph=True)
    x = torch.randn(4, 16, 64)
    compiled(x).square().sum().backward()
    plain(x).square().sum().backward()
    for ours, theirs in zip(dropped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
""")


def test_a_forward_that_others_put_over_it_stays(run: Run) -> None:
    run("""
import functools


def both():
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    return dropped, plain


X = torch.randn(4, 16, 64)


def test_a_wrapper_of_accelerate_say():
    dropped, plain = both()
    for layer in (dropped, plain):
        own = layer.forward
        layer.forward = functools.partial(lambda module, x, own: own(x) + 1, layer, own=own)
    torch.testing.assert_close(dropped(X), plain(X))
    report = fused.apply(model(dropped, Norm()))
    assert report.left == {"0": "its forward has been replaced"}
    dropped.eps = plain.eps = 0.5  # of which the kernel knows nothing
    torch.testing.assert_close(dropped(X), plain(X))
    assert fused.remove(dropped) == 0
    torch.testing.assert_close(dropped(X), plain(X))


def test_taking_the_kernel_out_leaves_the_wrapper():
    dropped, plain = both()
    for layer in (dropped, plain):
        own = layer.forward
        layer.forward = functools.partial(lambda module, x, own: own(x) + 1, layer, own=own)
    assert fused.remove(dropped) == 1
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(dropped(X), plain(X))
    assert not any(e.key.startswith("fused::") for e in profile.key_averages())


def test_a_layer_that_was_pickled_computes_itself_until_apply():
    import io

    dropped, plain = both()
    file = io.BytesIO()
    torch.save(dropped, file)
    for _ in range(2):
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        torch.testing.assert_close(loaded(X), plain(X))
        assert fused.remove(loaded) == 1
    file.seek(0)
    assert fused.apply(torch.load(file, weights_only=False)).replaced
    assert b"fused.runtime" not in file.getvalue()  # so that no package is needed to read it
""")


def test_what_a_class_has_is_looked_at(run: Run) -> None:
    run("""
class Helped(Norm):
    epsilon = 1e-6

    def normal(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)

    def forward(self, hidden):
        return self.normal(hidden) * self.scale


Helped.__qualname__ = "Norm"


class Other(Helped):
    def normal(self, x):
        return x


@pytest.mark.parametrize("change", [
    lambda layer, patch: setattr(layer, "epsilon", 0.5),
    lambda layer, patch: setattr(layer, "normal", lambda x: x),
    lambda layer, patch: patch.setattr(Helped, "epsilon", 0.5),
    lambda layer, patch: patch.setattr(Helped, "normal", lambda self, x: x),
    lambda layer, patch: setattr(layer, "__class__", Other),
])
def test_it(change, monkeypatch):
    plain = Helped()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    x = torch.randn(4, 16, 64)
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(dropped(x), plain(x))
    assert any(e.key.startswith("fused::") for e in profile.key_averages())
    for layer in (dropped, plain):
        change(layer, monkeypatch)
    torch.testing.assert_close(dropped(x), plain(x))
""")


@pytest.mark.slow
def test_tensors_that_are_no_plain_memory(run: Run) -> None:
    run("""
def test_it():
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    zeros = torch._efficientzerotensor((4, 16, 64))
    torch.testing.assert_close(dropped(zeros), plain(zeros))
    nested = torch.nested.nested_tensor([torch.randn(16, 64) for _ in range(4)])
    assert fused.rms_norm.check(nested, dropped.scale) == (False, "x is nested")
    for other in (torch.ones(16, 64).to_sparse(), torch.ones(4, 16, 64).to_mkldnn()):
        assert not fused.rms_norm.check(other, dropped.scale)[0]


def test_operators_take_no_other_shapes():
    operator, scale = fused.rms_norm.operator, torch.rand(64)
    for wrong in (torch.randn(1, 1, 64), torch.randn(4, 16, 64).double(), torch.randn(16, 64)):
        with pytest.raises(ValueError, match="the kernel was verified for"):
            operator(wrong, scale)
    strided = torch.randn(4, 64, 16).transpose(1, 2)
    torch.testing.assert_close(operator(strided, scale), fused.rms_norm.by_reference(strided, scale))
    x, grad = torch.randn(4, 16, 64), torch.randn(1, 64)
    backward = getattr(torch.ops.fused, fused.rms_norm.words["operator"] + "_backward")
    with pytest.raises(ValueError, match="the kernel was verified for"):
        backward(grad, x, scale, [True, True])
""")


@pytest.mark.slow
def test_a_mode_that_changes_functions_of_torch(run: Run) -> None:
    run("""
from torch.overrides import TorchFunctionMode


class Rounding(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is torch.rsqrt else made


def test_it():
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    x = torch.randn(4, 16, 64)
    with Rounding():
        torch.testing.assert_close(dropped(x), plain(x))
""")


@pytest.mark.slow
def test_threads_share_the_reference(run: Run) -> None:
    run("""
from concurrent.futures import ThreadPoolExecutor


def test_it():
    def largest(value):
        x, scale = torch.ones(3, 7, 64), torch.full((64,), float(value))  # outside the envelope
        return max((fused.rms_norm(x, scale) - value).abs().max().item() for _ in range(300))

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(largest, range(4))) < 1e-3
""")


def test_what_autograd_keeps(run: Run) -> None:
    run("""
def both():
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    return dropped, plain


def test_inputs_of_inference_mode():
    grads = []
    with torch.inference_mode():
        x = torch.randn(4, 16, 64)
    for layer in both():
        layer(x).square().sum().backward()
        grads.append(layer.scale.grad)
    torch.testing.assert_close(*grads)


def test_hooks_that_lay_tensors_out_anew():
    grads = []
    x = torch.randn(4, 16, 64)
    for layer in both():
        given = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.t() if t.dim() == 2 else t.mT.contiguous() if t.dim() == 3 else t, lambda t: t.mT if t.dim() == 3 else t):
            made = layer(given)
        made.square().sum().backward()
        grads.append((given.grad, layer.scale.grad))
    torch.testing.assert_close(*grads)
""")


@pytest.mark.slow
def test_a_transform_is_compiled(run: Run) -> None:
    run("""
def test_it():
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    x, found = torch.randn(4, 16, 64), []
    for layer in (dropped, plain):
        of = torch.func.grad(lambda x, layer=layer: layer(x).square().sum())
        found.append(torch.compile(of, fullgraph=True, backend="aot_eager")(x))
    torch.testing.assert_close(*found)
""")


@pytest.mark.slow
def test_without_a_backward_no_gradient_is_lost(run: Run) -> None:
    run("""
def test_it():
    from fused.runtime.kernel import DropInKernel

    words = dict(fused.METADATA["kernels"][0], backward=None, operator="without")
    kernel = DropInKernel(words, "fused.rms_norm", "fused", "")
    x, weight = torch.randn(4, 16, 64), torch.rand(64, requires_grad=True)
    assert kernel.check(x, weight) == (False, "a gradient of weight is wanted, and the kernel has none")
    kernel(x, weight).sum().backward()
    assert weight.grad.any()
    with torch.no_grad():
        assert kernel.check(x, weight)[0]
""")


@pytest.mark.slow
def test_a_gradient_of_the_gradient_is_an_error(run: Run) -> None:
    run("""
def test_it():
    x = torch.randn(4, 16, 64, requires_grad=True)
    weight = torch.rand(64)
    (first,) = torch.autograd.grad(fused.rms_norm(x, weight).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(first.sum(), x)
""")


@pytest.mark.parametrize("file", ["rms_norm/kernel.py", "runtime/swap.py", "metadata.json", "library"])
def test_a_changed_file_is_not_run(package: Path, file: str) -> None:
    path = package / "fused" / file
    if file == "library":
        path = next((package / "fused" / "libraries").glob("*.so"))
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(AssertionError, match="differs from the exported file"):
        python(package, "-c", "import fused")


def test_another_torch_gets_the_reference(package: Path) -> None:
    script = """
import torch
torch.__version__ = "2.0.1"
import fused
x, weight = torch.randn(4, 16, 64), torch.rand(64)
print(fused.rms_norm.check(x, weight))
torch.testing.assert_close(fused.rms_norm(x, weight), fused.rms_norm.by_reference(x, weight))
"""
    assert "verified with torch 2.1" in python(package, "-c", script)


@pytest.mark.slow
def test_a_wheel_is_built_and_installed_offline(package: Path, tmp_path: Path) -> None:
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "-q")
    python(package, *pip, "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(package))
    (wheel,) = tmp_path.glob("fused-*.whl")
    there = tmp_path / "installed"
    python(tmp_path, *pip, "install", "--no-index", "--no-deps", "--target", str(there), str(wheel))
    python(
        there,
        "-c",
        "import fused, torch; print(fused.rms_norm(torch.randn(4, 16, 64), torch.rand(64)).shape)",
    )


BAD = [
    (
        kernels.changed(kernels.RMS_NORM_KERNEL, "self.weight = nn.Parameter(torch.ones(width))", "self.gain = nn.Parameter(torch.ones(width))").replace("self.weight", "self.gain"),
        "weights differ from the reference's: gain, weight",
    ),
    (
        kernels.changed(kernels.RMS_NORM_KERNEL, "x = x.contiguous()", "x = x.contiguous().mul_(1.0)").replace("return out", "return x.copy_(out)"),
        "writes into its inputs",
    ),
    (
        kernels.changed(kernels.RMS_NORM_KERNEL, "self.eps = eps", "self.eps = eps; self.kept = torch.ones(width)").replace("lib.rms_norm(x, self.weight", "lib.rms_norm(x, self.kept"),
        "ignores changes to its weights",
    ),
    (
        kernels.changed(kernels.RMS_NORM_KERNEL, "from kernelwright import jit", "from kernelwright import __version__, jit"),
        "unsupported import in the kernel",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "why"), BAD, ids=[why for _, why in BAD])
def test_what_cannot_be_exported(kernel: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        write([PackagedKernel("rms_norm", winner(kernels.RMS_NORM, kernel, "x"))], tmp_path / "out", "fused")
    assert not list(tmp_path.iterdir())


def test_bad_names_and_folders(tmp_path: Path, exported: Path) -> None:
    for name, why in (
        ("two words", "invalid name of a package"),
        ("torch", "already installed"),
        ("class", "invalid name of a package"),
    ):
        with pytest.raises(UsageError, match=why):
            write([PackagedKernel("rms_norm", NORM)], tmp_path / "out", name)
    with pytest.raises(StorageError, match="is not empty"):
        write([PackagedKernel("rms_norm", NORM)], exported, "fused")
    with pytest.raises(UsageError, match="two kernels have the name"):
        write([PackagedKernel("rms_norm", NORM)] * 2, tmp_path / "out", "fused")


def test_the_tasks_file_in_the_working_directory_takes_no_name(
    tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "softmax_task.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="already installed"):
        write([PackagedKernel("rms_norm", NORM)], exported, "softmax_task")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match="is not empty"):
        write([PackagedKernel("rms_norm", NORM)], exported, "softmax_task")
