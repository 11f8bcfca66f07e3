"""Packages of Triton kernels: in Triton's interpreter, without a GPU, and as a compiler sees their launches."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.winner import Winner
from tests.helpers.builtin.proving import TRACES, propose, source
from tests.helpers.dropin.exporting import NORM, winner
from tests.helpers.installed import require

require("triton")

pytestmark = [pytest.mark.builds, pytest.mark.slow]

KERNEL = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rms_norm(x_ptr, weight_ptr, out_ptr, eps, width: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, width)
    x = tl.load(x_ptr + at)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    tl.store(out_ptr + at, x * scale * tl.load(weight_ptr + tl.arange(0, width)))


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rms_norm[(x.numel() // x.shape[-1],)](x, self.weight, out, self.eps, x.shape[-1])
        return out
"""


def triton_winner() -> Winner:
    found = winner(NORM.task.source, KERNEL, "rms_norm")
    candidate = found.candidate.model_copy(update={"language": "triton"})
    return found.model_copy(update={"candidate": candidate})


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package") / "out"
    metadata = write(
        [PackagedKernel("rms_norm", triton_winner(), layers={"Norm": {"weight": "scale"}})], out, "fused"
    )
    assert metadata["device"] == "cuda" and metadata["capabilities"] == [] and "measured" not in metadata
    assert metadata["kernels"][0]["provenance"]["verified_on"] == "Triton's interpreter, on no GPU"
    return out


def python(package: Path, *words: str, interpret: bool) -> str:
    env = {**os.environ, "PYTHONPATH": str(package), "TRITON_INTERPRET": str(int(interpret))}
    env.pop("KERNELWRIGHT_HOME", None)
    done = subprocess.run([sys.executable, *words], cwd=package, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_tests_pass_in_the_interpreter(package: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    said = python(package, *words, interpret=True)
    assert "25 passed in" in said, said


def test_without_a_gpu_the_layer_computes(package: Path) -> None:
    code = """
        import torch, fused

        assert fused._HERE == "it runs on a GPU, and torch finds none", fused._HERE
        x, weight = torch.randn(4, 16, 64), torch.rand(64)
        assert fused.KERNELS["rms_norm"].check(x, weight) == (False, fused._HERE)
        right = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        torch.testing.assert_close(fused.rms_norm(x, weight), right)
    """
    python(package, "-c", textwrap.dedent(code), interpret=False)


GATED = source(
    "return torch.sigmoid(x) * self.w", "torch.randn(64, 96)", init="self.w = nn.Parameter(torch.rand(96))"
)


@pytest.mark.parametrize("written", ["by hand", "by the builtin coder"])
def test_a_compiler_sees_its_launches(
    written: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tensors of a GPU that have no memory, as Inductor traces them; only the output is written."""
    monkeypatch.setenv(TRACES, str(tmp_path))
    if written != "by hand":
        candidate = propose(GATED, "triton")
        assert "class Launcher" in candidate.source and "sigmoid(" in candidate.source
        one = winner(GATED, candidate.source, "gated").model_copy(update={"candidate": candidate})
        package = tmp_path / "out"
        write([PackagedKernel("gated", one)], package, "fused")
    code = """
        import torch
        import triton
        from triton.backends.compiler import GPUTarget

        class Driver:
            get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
            get_active_torch_device = staticmethod(lambda: torch.device("cuda"))

        triton.runtime.driver.set_active(Driver())
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        import fused
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch._subclasses.functional_tensor import FunctionalTensorMode, FunctionalTensor
        from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

        (kernel,) = fused.KERNELS.values()
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            given = [torch.empty(each.shape, device="cuda") for each in kernel.arguments]

            def traced(*given):
                with FunctionalTensorMode() as mode:
                    wrapped = [FunctionalTensor.to_functional(each) for each in given]
                    made = kernel.operator(*wrapped)
                    torch._sync(made)
                    return torch._from_functional_tensor(made.elem)

            graph = make_fx(traced)(*given)
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        launches = [node for node in nodes if node.target is triton_kernel_wrapper_functional]
        assert launches and kernel.operator not in [node.target for node in nodes]
        for node in launches:
            written = node.kwargs["tensors_to_clone"]
            assert len(written) == 1 and "out" in written[0], written
    """
    python(package, "-c", textwrap.dedent(code), interpret=False)


def test_kernels_for_two_devices_are_two_packages(tmp_path: Path) -> None:
    both = [PackagedKernel("norm", NORM), PackagedKernel("other", triton_winner())]
    with pytest.raises(UsageError, match="a package has kernels for one device, not"):
        write(both, tmp_path / "out", "fused")
