"""Kernels of CuPy, numba.cuda and Helion where there is no GPU: right ones, wrong ones, what is unknown."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.evaluator import Protocol, Referee
from kernelwright.kernelbench.languages import LANGUAGES
from kernelwright.kernelbench.records import Evaluation, Verdict
from kernelwright.kernelbench.without_gpu.evaluator import FEW, EmulatedEvaluator
from tests.helpers.evaluator.trial import candidate_of, task_of

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]

FOLDER = Path(__file__).parent.parent / "languages"
REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def get_inputs():
    return [torch.randn(7, 65)]

def get_init_inputs():
    return []
"""
NEEDS_NUMBA = pytest.mark.skipif(find_spec("numba_cuda") is None, reason="pip install numba-cuda")
NEEDS_HELION = pytest.mark.skipif(find_spec("helion") is None, reason="pip install helion")
Try = Callable[..., Evaluation]


@pytest.fixture(scope="module")
def tried(evaluator: Referee) -> Iterator[Try]:
    """Evaluation of a file of languages/, with a text in it replaced."""
    protocol = Protocol(families=FEW)
    with Referee.start(cache=evaluator.sessions.pool.cache, protocol=protocol) as few:

        def call(name: str, old: str = "", new: str = "") -> Evaluation:
            source = (FOLDER / f"{name}.py").read_text()
            assert old in source
            return few.evaluate(task_of(REFERENCE), candidate_of(source.replace(old, new)))

        yield call


CUPY = {
    "right": ("", "", Verdict.unmeasured, "right in emulation"),
    "an address": ("cp.from_dlpack(y)", "y.data_ptr()", Verdict.unmeasured, "right in emulation"),
    "out of bounds": ("i < n", "i <= n", Verdict.runtime_error, "KernelFault: twice_relu: Invalid"),
    "half of a float": ("const int n)", "const float n)", Verdict.wrong_output, ""),
    "what it lacks": ("torch.empty_like(x)", "cp.zeros(3)", Verdict.unmeasured, "not checked: "),
}


@pytest.mark.parametrize("case", CUPY)
def test_cupy_is_emulated_without_cupy(case: str, tried: Try) -> None:
    old, new, verdict, begins = CUPY[case]
    if case == "half of a float":  # a Python number has eight bytes, of which the kernel reads four
        old, new = "cp.int32(n)", "float(n)"
    found = tried("cupy_raw", old, new)
    assert found.verdict is verdict and found.reason.startswith(begins), found.reason
    assert (found.launched == ("twice_relu",)) == (begins == "right in emulation")


@NEEDS_NUMBA
@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "verdict", "begins"),
    [
        ("", "", Verdict.unmeasured, "right in numba's simulator"),
        ("at < x.size", "at <= x.size", Verdict.runtime_error, "KernelFault: twice_relu: Invalid access"),
        ("* factor", "+ factor", Verdict.wrong_output, ""),
        ("relu(x[at])", "cuda.shfl_sync(-1, x[at], 0)", Verdict.unmeasured, "not checked: "),
    ],
)
def test_numba_is_simulated(old: str, new: str, verdict: Verdict, begins: str, tried: Try) -> None:
    found = tried("numba_cuda", old, new)
    assert found.verdict is verdict and found.reason.startswith(begins), found.reason


@NEEDS_HELION
@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "verdict", "begins"),
    [
        ("", "", Verdict.unmeasured, "right in Helion's interpreter"),
        ("* 2", "* 3", Verdict.wrong_output, ""),
        (
            "return twice_relu(x)",
            "return torch.relu(x) * 2",
            Verdict.unmeasured,
            "not checked: no call launched",
        ),
    ],
)
def test_helion_is_interpreted(old: str, new: str, verdict: Verdict, begins: str, tried: Try) -> None:
    found = tried("helion_tiles", old, new)
    assert found.verdict is verdict and found.reason.startswith(begins), found.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package", "kernel_name"),
    [
        ("gluon_layouts", "triton", "twice_relu"),
        ("cute_dsl", "cutlass", "twice_relu"),
        ("tilelang_parallel", "tilelang", "main_kernel"),
    ],
)
def test_what_does_not_run_is_built_for_a_chip(
    name: str, package: str, kernel_name: str, evaluator: Referee
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    candidate = candidate_of((FOLDER / f"{name}.py").read_text())
    found = EmulatedEvaluator(evaluator, ("sm_90",)).evaluate(task_of(REFERENCE), candidate)
    title = LANGUAGES[candidate.language].title
    assert (found.verdict, found.reason) == (Verdict.unmeasured, f"not checked: {title} kernels need a GPU")
    [build] = found.builds
    [kernel] = build.kernels
    assert build.ok and kernel_name in kernel.name and kernel.threads == 128 and kernel.registers > 0


def test_a_missing_package_is_the_machine_s_lack(tried: Try, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.kernelbench.languages.find_spec", lambda _: None)
    for name in ("numba_cuda", "helion_tiles"):
        found = tried(name)
        assert found.verdict is Verdict.unmeasured
        assert "is not installed here: pip install " in found.reason
    assert "pip install tilelang" in LANGUAGES["tilelang"].unavailable
