"""The gradient of a task as a task, and its kernel as the backward of a package."""

import doctest
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources import input_domains
from kernelwright.results.dropin import masking
from kernelwright.results.dropin.cli import _by_kernel
from kernelwright.results.dropin.gradient_tasks import gradient_tasks
from kernelwright.results.dropin.gradients import gradients
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin.exporting import NORM, SIGMOIDS, python, winner

pytestmark = pytest.mark.builds


@pytest.mark.slow
@pytest.mark.parametrize("way", ["recompute", "saved"])
def test_the_gradient_is_a_task_that_computes_it(way: str) -> None:
    for one in (NORM, SIGMOIDS):
        forward: dict[str, object] = {}
        found: dict[str, object] = {}
        exec(one.task.source, forward)
        exec(gradient_tasks(one.task, way)[0], found)
        given = found["get_inputs"]()  # type: ignore[operator]
        made = found["Model"]()(*given)  # type: ignore[operator]
        assert len(made) == 2
        if way == "recompute":  # then it takes gradients of the outputs, and what the forward takes
            inputs = [each.requires_grad_() for each in given[-2:]]
            model = forward["Model"](*forward["get_init_inputs"]())  # type: ignore[operator]
            outputs = torch.func.functional_call(
                model,
                dict(zip(dict(model.named_parameters()), inputs[1:], strict=False)),
                tuple(inputs[: 2 - len(list(model.parameters()))]),
            )
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.testing.assert_close(made, torch.autograd.grad(outputs, inputs, given[:-2]))


@pytest.mark.slow
def test_the_gradient_s_inputs_are_of_the_task_s_domains(home: Path) -> None:
    """Else the evaluator would try indices out of range, or refuse the task."""
    embedding = Task(
        id="file:embedding",
        level=1,
        source=textwrap.dedent("""
            import torch
            from torch import nn

            input_domains = ["index"]

            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embedding = nn.Embedding(16, 8)

                def forward(self, places):
                    return self.embedding(places).square()

            def get_inputs():
                return [torch.randint(0, 16, (4, 6))]

            def get_init_inputs():
                return []
        """),
    )
    source = gradient_tasks(embedding)[0]
    assert input_domains(source) == ["real", "index", "real"]
    assert "pow" not in source.rpartition("class Model(")[2], "the first power is no operation"
    with Referee.start(cache=home) as evaluator:
        assert evaluator.audit(Task(id="file:gradient", level=1, source=source)) == []


@pytest.mark.slow
def test_a_backward_that_is_a_kernel(tmp_path: Path) -> None:
    """It is the gradient's own reference, under another name, here; and not that of another task."""
    source = gradient_tasks(SIGMOIDS.task, "saved")[0]
    own = winner(source, f"{source}\n\nModelNew = Model\n", "gradient")
    source = gradient_tasks(NORM.task, "saved")[0]
    of_norm = winner(source, f"{source}\n\nModelNew = Model\n", "gradient")
    chosen = [
        PackagedKernel("sigmoids", SIGMOIDS, backward=[own]),
        PackagedKernel("rms_norm", NORM, backward=[of_norm]),
    ]
    written = write(chosen, tmp_path / "out", "fused", measure=False)
    assert [kernel["backward"]["way"] for kernel in written["kernels"]] == ["kernel", "kernel"]
    python(tmp_path / "out", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    with pytest.raises(UsageError, match="is not the gradient of file:rms_norm"):
        write([PackagedKernel("rms_norm", NORM, backward=[own])], tmp_path / "other", "fused")


GATED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.down = nn.Linear(16, width), nn.Linear(width, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x, y):
        gate = nn.functional.silu(self.gate(self.norm(x)))
        return self.down(gate) + y, gate.sum()


def get_inputs():
    return [torch.randn(8, 16), torch.randn(8, 16)]


def get_init_inputs():
    return [32]
"""


@pytest.mark.slow
def test_a_backward_from_what_the_forward_saves(tmp_path: Path) -> None:
    """Products and a norm's statistics; without gradients the forward saves nothing."""
    task = Task(id="file:gated", level=1, source=GATED)
    gradient, forward = gradient_tasks(task, "activations")
    body = gradient.rpartition("class Model(")[2].partition("def get_inputs")[0]
    assert "addmm" not in body and "silu.default" in body
    itself, backward, training = (
        winner(source, f"{source}\n\nModelNew = Model\n", name)
        for source, name in ((GATED, "gated"), (gradient, "gradient"), (forward, "forward"))
    )
    chosen = [PackagedKernel("gated", itself, layers={"Gated": {}}, backward=[training, backward])]
    written = write(chosen, tmp_path / "out", "fused", measure=True)
    saved = written["kernels"][0]["backward"]["saves"]
    assert [each["shape"] for each in saved] == [[8, 1], [8, 1], [8, 32]]
    python(tmp_path / "out", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    used = """
        import torch, fused

        kernel = fused.KERNELS["gated"]
        given = [each.like(torch.Generator().manual_seed(0)).requires_grad_() for each in kernel.arguments]
        first, _ = torch.compile(lambda *g: kernel(*g), fullgraph=True)(*given)
        wanted = torch.autograd.grad(kernel.by_reference(*given)[0].sum(), given)  # nothing of the second
        for made in (first, kernel(*given)[0], kernel.operator(*given)[0]):
            torch.testing.assert_close(torch.autograd.grad(made.sum(), given), wanted)
        for grad in (True, False):
            with torch.set_grad_enabled(grad), torch.profiler.profile() as seen:
                kernel.operator(*given)
            names = {each.name for each in seen.events()}
            assert any("_training" in name for name in names) == grad, names
        counts = []
        for frozen in (False, True):  # the kernel computes all gradients; ATen calls only those of inputs
            for each in given[2:]:
                each.requires_grad_(not frozen)
            made = kernel(*given)[0].sum()
            with torch.profiler.profile() as seen:
                made.backward()
            counts.append(sum(each.name == "aten::mm" for each in seen.events()))
            torch.testing.assert_close(given[0].grad, wanted[0] * (1 + frozen))
        assert counts == [4, 2], counts
    """
    python(tmp_path / "out", "-c", textwrap.dedent(used))
    with pytest.raises(UsageError, match="takes tensors that no kernel of file:gated saves"):
        write([PackagedKernel("gated", itself, backward=[backward])], tmp_path / "other", "fused")


def test_a_gradient_that_takes_nothing_else_of_the_forward() -> None:
    with pytest.raises(UsageError, match="leave out --forward"):
        gradient_tasks(SIGMOIDS.task, "activations")


def test_a_gradient_with_constants_of_a_device() -> None:
    """Its lines stand alone, whatever they name of torch."""
    causal = GATED.replace(
        "gate = nn.functional.silu(self.gate(self.norm(x)))",
        'x = x.masked_fill(~torch.ones(8, 16, dtype=torch.bool).tril(), float("-inf")).softmax(-1); '
        "gate = nn.functional.silu(self.gate(x))",
    )
    source, _ = gradient_tasks(Task(id="file:causal", level=1, source=causal), "activations")
    assert "device = x.device" in source and "torch.device(" not in source
    found: dict[str, Any] = {}
    exec(source, found)
    given = found["get_inputs"]()
    assert all(each.isfinite().all() for each in found["Model"]()(*given))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["recompute", "saved", "activations"])
def test_inputs_may_have_any_names(way: str) -> None:
    """Names that gradients give to outputs, to what is saved and to what they compute themselves, too."""
    source = GATED.replace("(self, x, y)", "(self, inputs, output_0)").replace(
        "self.norm(x)", "self.norm(inputs)"
    )
    source = source.replace("self.down(gate) + y", "self.down(gate) * output_0")
    gradient, _ = gradient_tasks(Task(id="file:gated", level=1, source=source), way)
    found: dict[str, Any] = {}
    exec(gradient, found)
    torch.manual_seed(0)
    given = found["get_inputs"]()
    named = dict(zip(inspect.signature(found["Model"].forward).parameters, [None, *given], strict=True))
    forward = found["Forward"](32)
    inputs = [named[name] for name in ("inputs", "output_0")]
    weights = {name: named.get(name.replace(".", "_")) for name, _ in forward.named_parameters()}
    torch.manual_seed(0)  # as they were drawn
    drawn = found["Forward"](32)
    original = found["forward_inputs"]()
    for each, right in zip(inputs, original, strict=True):
        torch.testing.assert_close(each, right)
    with torch.no_grad():
        for name, weight in drawn.named_parameters():
            weight.add_(0.1 * torch.rand_like(weight))
            assert weights[name] is None or torch.equal(weights[name], weight)
    inputs = [each.requires_grad_() for each in original]
    grads = [grad for name, grad in named.items() if name.startswith("grad_")]
    wanted = torch.autograd.grad(drawn(*inputs), [*inputs, *drawn.parameters()], grads)
    torch.testing.assert_close(found["Model"]()(*given), wanted)


ROTATED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32))
        self.frozen = nn.Parameter(torch.rand(32), requires_grad=False)
        self.register_buffer("offset", torch.rand(32))

    def forward(self, x, cos):
        return (x + self.offset).square() * cos * self.weight * self.frozen


def get_inputs():
    return [torch.randn(8, 32), torch.randn(8, 32)]


def get_init_inputs():
    return []


without_gradient = ["cos"]
"""


@pytest.mark.slow
def test_a_kernel_computes_the_gradients_that_training_wants(tmp_path: Path) -> None:
    """None of angles, buffers and frozen weights; where one is wanted, the reference computes."""
    task = Task(id="file:rotated", level=1, source=ROTATED)
    gradient, _ = gradient_tasks(task)
    found: dict[str, Any] = {}
    exec(gradient, found)
    assert len(found["Model"]()(*found["get_inputs"]())) == 2 and found["without_gradient"] == []
    itself, backward = (
        winner(source, f"{source}\n\nModelNew = Model\n", name)
        for source, name in ((ROTATED, "rotated"), (gradient, "gradient"))
    )
    chosen = [PackagedKernel("rotated", itself, layers={"Rotated": {}}, backward=[backward])]
    written = write(chosen, tmp_path / "out", "fused", measure=False)
    assert written["kernels"][0]["backward"]["of"] == ["x", "weight"]
    said = python(tmp_path / "out", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    assert " passed" in said and "failed" not in said, said
    used = """
        import torch, fused

        kernel = fused.KERNELS["rotated"]
        for place, name in ((1, "cos"), (3, "frozen")):
            given = [each.like(torch.Generator().manual_seed(0)) for each in kernel.arguments]
            given[0].requires_grad_()
            assert kernel.check(*given) == (True, "")
            given[place].requires_grad_()
            fits, why = kernel.check(*given)
            assert not fits and why == f"a gradient of {name} is wanted, and the kernel has none", why
            wanted = [given[0], given[place]]
            found = torch.autograd.grad(kernel(*given).sum(), wanted)
            right = torch.autograd.grad(kernel.by_reference(*given).sum(), wanted)
            torch.testing.assert_close(found, right)
            with torch.no_grad():
                assert kernel.check(*given)[0]
    """
    python(tmp_path / "out", "-c", textwrap.dedent(used))


@pytest.mark.slow
def test_inputs_without_a_gradient_have_the_task_s_names() -> None:
    source = ROTATED.replace("(self, x, cos)", "(self, *given)").replace(
        "return (x", "x, cos = given\n        return (x"
    )
    with pytest.raises(UsageError, match="without_gradient of file:rotated names 'cos'"):
        gradient_tasks(Task(id="file:rotated", level=1, source=source))


def test_a_task_needs_a_file_of_its_own(tmp_path: Path) -> None:
    words = ["gradient", "builtin:level1/relu", "--out", "one.py", "--forward", "one.py"]
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and "use two different files" in done.stderr


def test_the_gradients_of_all_kernels_from_one_run() -> None:
    both = _by_kernel(["runs/gradients"], ["norm", "mlp"], "--backward", True)
    assert both == {"norm": ["runs/gradients"], "mlp": ["runs/gradients"]}
    assert _by_kernel(["mlp:runs/b"], ["norm", "mlp"], "--backward", True) == {"norm": [], "mlp": ["runs/b"]}
    with pytest.raises(UsageError, match="--backward is given twice for mlp"):
        _by_kernel(["mlp:runs/b", "runs/gradients"], ["norm", "mlp"], "--backward", True)


def test_the_example_of_a_masked_gradient() -> None:
    assert doctest.testmod(masking) == (0, 5)


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, False)])
def test_a_convolution_has_only_the_gradients_that_are_wanted(wanted: tuple[bool, ...]) -> None:
    model = torch.nn.Conv2d(3, 4, 3)
    x, names = torch.randn(2, 3, 8, 8), ["x", "weight", "bias"]
    gradient = gradients(model, [x], ["weight", "bias"], names, ["output"], names)[0]
    body = "\n".join(f"    {line}" for line in masking.masked(gradient.lines))
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def of({', '.join(gradient.takes)}, wanted):\n{body}", scope)
    given = {"x": x, "weight": model.weight.detach(), "bias": model.bias.detach()}
    (grad,) = set(gradient.takes) - given.keys()
    given[grad] = torch.randn(2, 4, 6, 6)
    with FlopCounterMode(display=False) as counted:
        found = scope["of"](*(given[name] for name in gradient.takes), wanted)
    leaves = [x.requires_grad_(), model.weight, model.bias]
    right = torch.autograd.grad(model(x), leaves, given[grad])
    products = 2 * 2 * 4 * 6 * 6 * 3 * 3 * 3  # of one
    assert counted.get_total_flops() == sum(wanted[:2]) * products
    for ours, theirs, needed in zip(found, right, wanted, strict=True):
        assert (ours is not None) == needed
        assert ours is None or torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
