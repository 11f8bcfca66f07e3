"""Packages of kernels for any sizes: envelopes, gradients, FLOPs and graphs in names of sizes."""

from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.sizes.dispatch import dispatching
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.sizes import of_file
from kernelwright.results.dropin.gradient_tasks import gradient_tasks
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.runtime.envelope import Argument, check_of
from kernelwright.results.dropin.winner import Winner
from tests.helpers.dropin.exporting import LAYERS, python, winner
from tests.helpers.dropin.small_kernels import RMS_NORM, RMS_NORM_KERNEL, changed

SIZES = ({"batch": "4", "length": "16"}, {"batch": "1", "length": "24"}, {"batch": "3", "length": "7"})
NORM = f"batch = 4\nlength = 16\n{changed(RMS_NORM, '4, 16, 64', 'batch, length, 64')}"


def reference(forward: str, inputs: str, width: int = 64, init: str = "") -> str:
    return f"""
import torch
from torch import nn

batch = 4
length = 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({width}, {width}) / {width} ** 0.5)
        {init or "pass"}

    def forward(self, x):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


PRODUCT = reference("return torch.nn.functional.silu(x @ self.weight)", "torch.randn(batch, length, 64)")
LOSS = reference("return (x * self.weight[0]).square().mean()", "torch.randn(batch, length, 64)")
TURNED = reference(
    "return torch.cat([x[..., 32:], -x[..., :32]], -1) * 2, x.flatten(0, 2)[1:] @ self.weight",
    "torch.randn(batch, length, 2, 64).transpose(1, 2)",
)


def of(source: str, name: str, kernel: str = "", sizes: tuple[dict[str, str], ...] = SIZES) -> Winner:
    """Return a winner for several sizes; the reference itself where there is no kernel."""
    found = winner(source, kernel or f"{source}\n\nModelNew = Model\n", name)
    workload = tuple(Size(constants=size) for size in sizes)
    return found.model_copy(update={"task": found.task.model_copy(update={"workload": workload})})


SMALL = changed(RMS_NORM_KERNEL, "#pragma omp parallel for", "")
BY_SIZE = dispatching(SMALL, RMS_NORM_KERNEL, 0, 5000) or ""
KERNELS = {
    "norm": of(NORM, "norm", BY_SIZE),
    "product": of(PRODUCT, "product"),
    "loss": of(LOSS, "loss"),
    "turned": of(TURNED, "turned"),
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("any_size") / "out"
    layers = {"norm": {"Norm": {"weight": "scale"}}}
    chosen = [PackagedKernel(name, each, layers.get(name, {})) for name, each in KERNELS.items()]
    metadata = write(chosen, out, "fused", measure=False)
    for kernel in metadata["kernels"]:
        assert kernel["one_size"] == "", kernel["name"]
        assert kernel["limits"] == {"batch": [1, None], "length": [1, None]}
    return out


@pytest.mark.slow
def test_the_package_s_own_tests(package: Path) -> None:
    said = python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    assert " passed" in said and "failed" not in said, said


def test_layers_compute_by_the_kernel_at_any_size(package: Path) -> None:
    script = (
        LAYERS
        + """
plain = model(Block(), Block())
dropped = copy.deepcopy(plain)
assert len(fused.apply(dropped).replaced) == 2
for shape in ((4, 16, 64), (1, 1, 64), (2, 100, 64), (7, 3, 64)):
    x = torch.randn(shape)
    results = []
    for each in (plain, dropped):
        given = x.clone().requires_grad_()
        made = each(given)
        made.square().sum().backward()
        results.append([made, given.grad, *(p.grad.clone() for p in each.parameters())])
        each.zero_grad()
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)  # sums in another order
said = str(fused.report(dropped))
assert said.count("norm 4") == 2, said
dropped(torch.randn(5, 64))  # of another rank
assert "(batch, length, 64)" in str(fused.report(dropped)), fused.report(dropped)
empty = dropped(torch.randn(0, 16, 64))
assert empty.shape == (0, 16, 64) and "batch is 0" in str(fused.report(dropped)), fused.report(dropped)
"""
    )
    python(package, "-c", script)


def test_one_graph_has_the_kernel_for_all_lengths(package: Path) -> None:
    script = (
        LAYERS
        + """
plain = model(Block())
dropped = copy.deepcopy(plain)
fused.apply(dropped)
graphs = []


def backend(graph, example):
    graphs.append(graph.code)
    return graph


compiled = torch.compile(dropped, fullgraph=True, backend=backend)
for length in (16, 24, 40, 7):  # the second length makes the axis dynamic
    x = torch.randn(4, length, 64)
    torch.testing.assert_close(compiled(x), plain(x))
assert len(graphs) == 2, len(graphs)
operator = str(fused.KERNELS["norm"].operator).removesuffix(".default")
assert all(operator in graph for graph in graphs), graphs
"""
    )
    python(package, "-c", script)


def test_flops_are_those_of_the_size(package: Path) -> None:
    script = """
import torch
from torch.utils.flop_counter import FlopCounterMode
import fused

kernel = fused.KERNELS["product"]
for sizes in ({"batch": 4, "length": 16}, {"batch": 3, "length": 5}):
    counts = []
    for call in (kernel, kernel.by_reference):
        given = [each.at(sizes).like(torch.Generator()).requires_grad_() for each in kernel.arguments]
        with FlopCounterMode(display=False) as counter:
            call(*given).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * sizes["batch"] * sizes["length"] * 64 * 64, counts
"""
    python(package, "-c", script)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            reference("return x.view(batch, length, 32, 2).sum(-1)", "torch.randn(batch, length, 64)"),
            "its forward or its constructor reads the size itself",
        ),
        (reference("return x + self.weight", "torch.randn(batch, 64, 64)", init="self.b = nn.Parameter(torch.ones(length))"), "its weights depend on"),
        (reference("return x + self.weight", "torch.randn(batch, 64, 64) / length"), "length is not the length of an input's axis"),
        (reference("return x + x.shape[1] % 5", "torch.randn(batch, length, 64)"), ""),
        (reference("return x * 2 if len(x) < 20 else x * 2 + 0 * x.sum()", "torch.randn(batch, length, 64)"), "depends on the free sizes"),
    ],
    ids=["its own sizes", "weights", "no axis", "right all the same", "another graph"],
)  # fmt: skip
def test_what_is_not_for_any_size_is_packaged_for_the_first(source: str, why: str, tmp_path: Path) -> None:
    kernel = of(source, "odd")
    metadata = write([PackagedKernel("odd", kernel)], tmp_path / "out", "odd_sizes", measure=False)
    (words,) = metadata["kernels"]
    if why:
        assert why in words["one_size"] and not words["limits"], words["one_size"]
        assert all("free" not in each for each in words["inputs"])
    else:
        assert not words["one_size"] and words["limits"]


def test_a_kernel_that_is_wrong_at_other_sizes_is_packaged_for_the_first(tmp_path: Path) -> None:
    wrong = changed(RMS_NORM_KERNEL, "x.numel() // x.shape[-1]", "min(100, x.numel() // x.shape[-1])")
    kernel = of(NORM, "norm", wrong)
    metadata = write([PackagedKernel("norm", kernel)], tmp_path / "out", "wrong_sizes", measure=False)
    assert "the kernel is wrong at batch=17, length=19" in metadata["kernels"][0]["one_size"]


@pytest.mark.slow
def test_a_size_that_the_kernel_is_not_for_is_left_to_the_reference(tmp_path: Path) -> None:
    narrow = changed(
        RMS_NORM_KERNEL,
        "        x = x.contiguous()",
        "        assert 2 <= len(x) <= 50\n        x = x.contiguous()",
    )
    kernel = of(NORM, "norm", narrow, (SIZES[0], {"batch": "2", "length": "40"}))
    metadata = write([PackagedKernel("norm", kernel)], tmp_path / "out", "narrow", measure=False)
    assert metadata["kernels"][0]["limits"] == {"batch": [2, None], "length": [1, None]}  # 50 is not tried
    kernel = of(NORM, "norm", narrow, (SIZES[0], {"batch": "45", "length": "8"}))
    metadata = write([PackagedKernel("norm", kernel)], tmp_path / "other", "narrower", measure=False)
    assert metadata["kernels"][0]["limits"] == {"batch": [2, 45], "length": [1, None]}


@pytest.mark.slow
def test_a_gradient_s_kernels_serve_any_size_too(tmp_path: Path) -> None:
    forward = of(PRODUCT, "product")
    texts = gradient_tasks(forward.task, "activations")
    assert all(text for text in texts)
    backward = []
    for name, text in zip(("gradient", "training"), texts, strict=True):
        source, sizes = of_file(text, name)
        assert [each.constants for each in sizes] == list(SIZES)
        own = winner(source, f"{source}\n\nModelNew = Model\n", name)
        backward.append(own.model_copy(update={"task": own.task.model_copy(update={"workload": sizes})}))
    chosen = PackagedKernel("product", forward, backward=backward)
    metadata = write([chosen], tmp_path / "out", "fused", measure=False)
    assert metadata["kernels"][0]["backward"]["saves"][0]["free"] == ["batch * length", None]
    said = python(tmp_path / "out", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    assert " passed" in said and "failed" not in said, said
    one = backward[0].model_copy(update={"task": backward[0].task.primary})
    with pytest.raises(UsageError, match="does not serve any batch, length, as the forward does"):
        write([PackagedKernel("product", forward, backward=[one, backward[1]])], tmp_path / "x", "fused_x")


def test_an_envelope_of_free_sizes() -> None:
    free = Argument(
        "x", (4, 16, 8), (128, 8, 1), torch.float32, ("batch", "length", None), ("length * 8", None, None)
    )
    same = Argument("y", (4, 64), (64, 1), torch.float32, ("batch", "length * 4"), ("length * 4", None))
    check = check_of([free, same], "", False, {"batch": (1, None), "length": (2, 30)})
    assert check(torch.ones(3, 5, 8), torch.ones(3, 20)) == (True, "")
    assert check(torch.ones(1, 30, 8), torch.ones(1, 120)) == (True, "")
    for x, y, why in (
        ((3, 5, 8), (3, 21), "y has shape (3, 21), the kernel was verified for (batch, length * 4)"),
        ((3, 5, 8), (2, 20), "y has shape (2, 20)"),
        ((3, 1, 8), (3, 4), "length is 1, the kernel was verified for length from 2 to 30"),
        ((3, 31, 8), (3, 124), "length is 31"),
        ((3, 5, 9), (3, 20), "x has shape (3, 5, 9), the kernel was verified for (batch, length, 8)"),
        ((3, 5), (3, 20), "x has shape (3, 5)"),
    ):
        fits, said = check(torch.ones(x), torch.ones(y))
        assert not fits and why in said, said
    early = check_of(
        [same, free], "", False, {"batch": (1, None), "length": (2, 30)}
    )  # whose length is read later
    assert early(torch.ones(3, 20), torch.ones(3, 5, 8)) == (True, "")
    fits, said = early(torch.ones(3, 20), torch.ones(3, 5))
    assert not fits and "y has shape (3, 20), the kernel was verified for (batch, length * 4)" in said
    turned = torch.ones(5, 3, 8).transpose(0, 1)
    fits, said = check(turned, torch.ones(3, 20))
    assert not fits and "strides" in said
    assert (
        not check(3, torch.ones(3, 20))[0] and not check(torch.ones(3, 5, 8).double(), torch.ones(3, 20))[0]
    )


@pytest.mark.slow
def test_code_that_is_built_for_each_size_is_packaged_for_one(tmp_path: Path) -> None:
    """Refuse what a package would have no library of another size for."""
    kernel = changed(
        changed(RMS_NORM_KERNEL, "lib = jit.compile_cpp(SOURCE)\n", ""),
        "        x = x.contiguous()\n",
        "        x = x.contiguous()\n        lib = jit.compile_cpp(f'{SOURCE}// {tuple(x.shape)}')\n",
    )
    metadata = write(
        [PackagedKernel("norm", of(NORM, "norm", kernel))], tmp_path / "out", "fused", measure=False
    )
    assert metadata["kernels"][0]["one_size"] == "it builds other code at other sizes"
