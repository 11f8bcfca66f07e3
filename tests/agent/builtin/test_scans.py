"""Scans on a GPU: by runs of threads, backwards, behind paddings, along rows and columns of odd sizes."""

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from tests.helpers.builtin import interpreting
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
PLACED = ("backwards", "backwards, of columns", "without the element", "behind ones", "between zeros")


@emulated
@pytest.mark.parametrize("name", SCANS)
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
