"""Scans on a GPU: by runs of threads, backwards, behind paddings, along rows and columns of odd sizes."""

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.passes import split_reductions
from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from tests.helpers.builtin import interpreting
from tests.helpers.builtin.long_rows import HELD, LEAST
from tests.helpers.builtin.proving import propose, prove, source

pytestmark = pytest.mark.builds

emulated = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there")

ALONG_ROWS = {
    "rows that begin at multiples of a run": source("return x.cumsum(-1)", "torch.randn(9, 516)"),
    "rows that begin anywhere": source("return x.cumsum(-1), x.cumprod(-1)", "torch.rand(7, 381) + 0.5"),
    "a warp for each row": source("return x.exp().cumsum(-1) * y + x", "X, X", arguments="x, y").replace(
        "X", "torch.randn(1061, 131)"
    ),
    "backwards": source("return x.flip(-1).cumsum(-1).flip(-1)", "torch.rand(6, 515)"),
    "backwards, of columns": source("return x.flip(0).cumprod(0).flip(0)", "torch.rand(301, 37) + 0.5"),
    "without the element": source("return F.pad(x.cumsum(-1)[..., :-1], (1, 0))", "torch.rand(3, 5, 260)"),
    "behind ones": source(
        "return F.pad(x.cumprod(-1)[:, :-1], (1, 0), value=1.0)", "torch.rand(5, 77) + 0.5"
    ),
    "between zeros": source("return F.pad(x.cumsum(-1), (2, 3))", "torch.rand(5, 140)"),
    "in bytes, double precision and whole numbers": source(
        "return torch.where(m, x, 0).cumsum(-1), x.double().cumsum(-1), (x * 9).long().cumsum(-1)",
        "torch.randn(5, 259), torch.rand(5, 259) > 0.5",
        arguments="x, m",
    ),
    "of scans, and what they are reduced to": source(
        "y = x.cumsum(-1).sin().cumsum(-1); return y, y.amax(-1), (y + 1).mean()", "torch.randn(6, 530)"
    ),
}
ALONG_COLUMNS = {
    "few columns": source("return x.cumsum(0)", "torch.randn(530, 19)"),
    "columns of matrices": source("return x.exp().cumsum(1) * x", "torch.randn(3, 201, 41)"),
    "short columns": source("return x.cumprod(0), x.cumsum(0)", "torch.rand(16, 70) + 0.5"),
    "scans of scans, down": source(
        "return x.cumsum(0).cumsum(0), x.cumsum(0).amax(0)", "torch.randn(97, 33)"
    ),
}
SCANS = ALONG_ROWS | ALONG_COLUMNS
SPLIT = {
    "few long rows": source("return x.cumsum(-1), x.sum(-1)", "torch.rand(3, 1200)"),
    "few long columns": source("return (x * 2).cumprod(1) + 1", "torch.rand(2, 900, 20) * 0.02 + 0.49"),
    "all of a value": source("return x.cumsum(0), x.double().cumsum(0)", "torch.rand(1300)"),
    "backwards, in parts": source("return x.flip(-1).cumsum(-1).flip(-1)", "torch.rand(2, 1100)"),
}
QUICK = (
    "rows that begin anywhere",
    "without the element",
    "columns of matrices",
)  # of what takes seconds each
PLACED = ("backwards", "backwards, of columns", "without the element", "behind ones", "between zeros")


@emulated
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SCANS]
)
def test_scans_in_cuda(name: str, tmp_path: Path) -> None:
    candidate = prove(SCANS[name], tmp_path, "cuda")
    assert "scan_run" in candidate.source
    kernels = re.search(r'SOURCE = r"""(.*?)"""', candidate.source, re.DOTALL)
    assert kernels is not None
    try:
        nvrtc.version()
    except Unavailable:
        return
    for chip in ("sm_80", "sm_90", "sm_100"):
        assert nvrtc.cubin(kernels[1], chip)


@emulated
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["few columns", "rows that begin anywhere", "of scans, and what they are reduced to"]
)
@pytest.mark.parametrize(
    "knobs", [{"k0__rows": "4", "k0__warps": "2"}, {"k0__rows": "1", "k0__warps": "16"}], ids=str
)
def test_other_schedules_of_scans(name: str, knobs: dict[str, str], tmp_path: Path) -> None:
    prove(SCANS[name], tmp_path, "cuda", **knobs)


@pytest.mark.parametrize("name", PLACED)
def test_placed_scans_in_triton(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = propose(SCANS[name], "triton")
    forward = candidate.source.partition("class ModelNew")[2]
    assert "torch.ops" not in forward and "pad(" not in forward
    interpreter.submit(interpreting.check, SCANS[name], candidate).result()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reductions, "_HELD", HELD)
    monkeypatch.setattr(split_reductions, "_LEAST", LEAST)


@emulated
@pytest.mark.parametrize("name", SPLIT)
def test_parts_of_scans_in_cuda(name: str, tmp_path: Path, small_parts: None) -> None:
    candidate = prove(SPLIT[name], tmp_path, "cuda")
    assert candidate.schedule["split"] == "8"
    assert candidate.source.count("_before = torch.empty") == (2 if name == "all of a value" else 1)


@pytest.mark.parametrize("name", SPLIT)
def test_parts_of_scans_in_triton(name: str, interpreter: ProcessPoolExecutor, small_parts: None) -> None:
    candidate = propose(SPLIT[name], "triton")
    assert candidate.schedule["split"] == "8"
    interpreter.submit(interpreting.check, SPLIT[name], candidate).result()


def test_enough_rows_are_not_split(small_parts: None) -> None:
    assert "split" not in propose(source("return x.cumsum(-1)", "torch.rand(70, 1200)"), "cuda").schedule


WINDOWS = {
    "pooling and a depthwise convolution": source(
        "return F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.conv2d(x, w, b, padding=1, groups=6)",
        "torch.randn(3, 6, 32, 64), torch.randn(6, 1, 3, 3), torch.randn(6)",
        arguments="x, w, b",
    ),
    "pooling of volumes": source("return F.max_pool3d(x, 3, 2)", "torch.randn(2, 3, 9, 11, 13)"),
    "short columns": source("return x.sum(1), x.amax(1)", "torch.randn(5, 9, 77)"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_elements_one_by_one_in_triton(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = propose(WINDOWS[name], "triton", k0__block="128")
    assert "tl.static_range" in candidate.source
    interpreter.submit(interpreting.check, WINDOWS[name], candidate).result()


@emulated
def test_windows_are_unrolled_in_cuda(tmp_path: Path) -> None:
    candidate = prove(WINDOWS["pooling of volumes"], tmp_path, "cuda", k0__rows="128", k0__warps="4")
    assert re.search(r"#pragma unroll\n\s*for \(int j = 0; j < COLUMNS", candidate.source)
