"""Packages of kernels for a GPU: in the interpreter and the emulator, without a GPU, and on the tests' driver."""

import json
import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.winner import Winner
from tests.helpers.builtin.proving import TRACES, propose, source
from tests.helpers.dropin.exporting import NORM, winner
from tests.helpers.gpu.fake_driver import fake_driver, library
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


CUDA_KERNEL = '''
import torch
from torch import nn

from kernelwright import jit

SOURCE = r"""
extern "C" __global__ void rms_norm(const float* x, const float* weight, float* out, float eps) {
    __shared__ float squares[THREADS];
    const long row = (long)blockIdx.x * WIDTH;
    float sum = 0;
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) sum += x[row + i] * x[row + i];
    squares[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) squares[threadIdx.x] += squares[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = rsqrtf(squares[0] / WIDTH + eps);
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) out[row + i] = x[row + i] * scale * weight[i];
}
"""


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.kernel = jit.compile_cuda(SOURCE, ["-DTHREADS=32", f"-DWIDTH={width}"]).rms_norm

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        self.kernel((x.numel() // x.shape[-1],), (32,), (x, self.weight, out, self.eps))
        return out
'''
RELU_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 0.3


def get_inputs():
    return [torch.randn(1000)]


def get_init_inputs():
    return []
"""
RELU = '''
import torch
from torch import nn

from kernelwright.jit import compile_cuda

lib = compile_cuda(r"""
extern "C" __global__ void scaled_relu(const float* x, float* y, int n, float factor) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? x[i] * factor : 0.0f;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scaled_relu((4,), (256,), (x, y, x.numel(), 0.3))
        return y
'''


def in_language(language: str, task: str, kernel: str, name: str) -> Winner:
    found = winner(task, kernel, name)
    return found.model_copy(update={"candidate": found.candidate.model_copy(update={"language": language})})


def triton_winner() -> Winner:
    return in_language("triton", NORM.task.source, KERNEL, "rms_norm")


def cuda_winner() -> Winner:
    require("cuda.bindings")
    return in_language("cuda", NORM.task.source, CUDA_KERNEL, "rms_norm")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package") / "out"
    metadata = write(
        [PackagedKernel("rms_norm", triton_winner(), layers={"Norm": {"weight": "scale"}})], out, "fused"
    )
    assert metadata["device"] == "cuda" and metadata["capabilities"] == [] and "measured" not in metadata
    assert metadata["kernels"][0]["provenance"]["verified_on"] == "Triton's interpreter, on no GPU"
    return out


def python(package: Path, *words: str, interpret: bool, **environment: str) -> str:
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": str(int(interpret)), **environment}
    env.pop("KERNELWRIGHT_HOME", None)
    done = subprocess.run([sys.executable, *words], cwd=package, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_tests_pass_in_the_interpreter(package: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    said = python(package, *words, interpret=True)
    assert re.search("^25 passed(, [0-9]+ warnings)? in", said, re.M), said


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


@pytest.fixture(scope="module")
def cuda_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package") / "out"
    metadata = write(
        [PackagedKernel("rms_norm", cuda_winner(), layers={"Norm": {"weight": "scale"}})], out, "fused"
    )
    assert metadata["device"] == "cuda" and not metadata["cpu_flags"] and "measured" not in metadata
    assert metadata["kernels"][0]["provenance"]["verified_on"] == "an emulator of CUDA C++, on no GPU"
    return out


def test_cuda_has_a_cubin_for_each_capability(cuda_package: Path) -> None:
    metadata = json.loads((cuda_package / "fused" / "metadata.json").read_text())
    assert [8, 0] in metadata["capabilities"] and [9, 0] in metadata["capabilities"]
    names = {path.name.partition(".")[2]: path for path in (cuda_package / "fused/libraries").glob("*.cubin")}
    assert names.keys() == {f"sm_{major}{minor}.cubin" for major, minor in metadata["capabilities"]}
    assert {path.read_bytes()[:4] for path in names.values()} == {b"\x7fELF"}
    assert len({path.read_bytes() for path in names.values()}) == len(names)


def test_cuda_passes_its_tests_in_the_emulator(cuda_package: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    said = python(cuda_package, *words, interpret=True)
    assert re.search("^25 passed(, [0-9]+ warnings)? in", said, re.M), said


def test_cuda_without_a_gpu_the_layer_computes(cuda_package: Path) -> None:
    code = """
        import torch, fused

        x, weight = torch.randn(4, 16, 64), torch.rand(64)
        assert fused.KERNELS["rms_norm"].check(x, weight) == (False, fused._HERE) and fused._HERE
        right = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        torch.testing.assert_close(fused.rms_norm(x, weight), right)
    """
    python(cuda_package, "-c", textwrap.dedent(code), interpret=False)


def test_on_the_hub_cuda_is_for_drivers_and_chips_that_load_its_cubins(tmp_path: Path) -> None:
    require("kernels")
    from kernels._rust import Digest, DigestAlgorithm, Metadata
    from kernels.archs import _supports_cuda_capability
    from kernels.backends import CUDA
    from kernels.variants import _resolve_variant_for_system, get_variants_local
    from packaging.version import Version

    chosen = [PackagedKernel("rms_norm", cuda_winner(), layers={"Norm": {"weight": "scale"}})]
    metadata = write(chosen, tmp_path / "hub", "fused", Format.hf, measure=False)
    (folder,) = (tmp_path / "hub/build").iterdir()
    cuda, release = Version(nvrtc.version()), Version(".".join(torch.__version__.split(".")[:2]))

    def found(of: Version, torch_release: Version, cpu: str = platform.machine()) -> bool:
        variants = get_variants_local(folder.parent)
        accepted, _ = _resolve_variant_for_system(
            variants, CUDA(version=of), cpu, "linux", torch_release, True, None
        )
        return [each.variant_str for each in accepted] == [folder.name]

    assert found(cuda, release) and found(Version(f"{cuda.major}.{cuda.minor + 1}"), release)
    assert not found(Version(f"{cuda.major - 1}.9"), release) and not found(cuda, Version("2.1"))
    assert not found(cuda, release, "another")
    words = Metadata.read_from_file(folder / "metadata.json")
    archs = words.backend.archs
    assert archs == [f"{major}.{minor}" for major, minor in metadata["capabilities"]]
    assert _supports_cuda_capability(archs, (9, 0)) and not _supports_cuda_capability(archs, (7, 5))
    assert words.digest is not None
    words.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder))


ON_THE_DRIVER = """
    import ctypes, sys, time
    import torch
    from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu

    with TorchOnGpu("sm_90"):
        torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream = lambda: 0, lambda index: 0
        torch.cuda.get_device_capability = lambda *_: tuple(map(int, sys.argv[1].split(".")))
        import fused
"""


def test_cuda_is_launched_by_the_driver(tmp_path: Path) -> None:
    """The tests' own: it has the host's memory, and reads arguments as the driver's interface says."""
    require("cuda.bindings")
    out = tmp_path / "out"
    write([PackagedKernel("relu", in_language("cuda", RELU_TASK, RELU, "relu"))], out, "fused")
    environment = {"FAKE_CUDA_PAGE": str(tmp_path / "page"), "LD_LIBRARY_PATH": str(library().parent)}
    calls = """
        assert not fused._HERE, fused._HERE
        x = torch.randn(1000)
        (made,) = fused.KERNELS["relu"]._compute(x)  # with a mode on, its check sends calls elsewhere
        assert torch.equal(made, torch.relu(x) * 0.3)
        from fused.relu import kernel
        try:
            kernel.lib.scaled_relu((4,), (256,), (x.double(), x, 1000, 0.3))
        except TypeError as error:
            assert "float*: Tensor of torch.float64" in str(error), error
        else:
            raise AssertionError("it takes float64 for float32")
        y, found = torch.empty_like(x), kernel.lib.scaled_relu
        found((4,), (256,), (x, y, 1000, 0.3), shared_mem=100_000)
        assert found._allowed == {0: 100_000}
    """
    with fake_driver(tmp_path) as page:
        said = python(
            out, "-c", textwrap.dedent(ON_THE_DRIVER + calls), "9.0", interpret=False, **environment
        )
        assert page.launches >= 2, said
        page.fail("cuLaunchKernel", 201)  # as in a thread that has not used the device
        once = """        assert fused.KERNELS["relu"]._compute(torch.ones(1000))[0].eq(0.3).all()"""
        python(out, "-c", textwrap.dedent(ON_THE_DRIVER + once), "9.0", interpret=False, **environment)
        other = """        assert fused._HERE.startswith("it is for compute capability 8.0, "), fused._HERE"""
        python(out, "-c", textwrap.dedent(ON_THE_DRIVER + other), "8.7", interpret=False, **environment)
