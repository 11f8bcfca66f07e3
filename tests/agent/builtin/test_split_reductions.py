"""Long reductions on a GPU: split over blocks, as right as in one, and always the same."""

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.builtin.passes import split_reductions
from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.errors import Unavailable
from tests.helpers.builtin import interpreting
from tests.helpers.builtin.long_rows import HELD, LEAST, LONG_ROWS
from tests.helpers.builtin.proving import (
    assert_right,
    graph_of,
    models,
    propose,
    prove,
    source,
    task,
)

pytestmark = pytest.mark.builds

emulated = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reductions, "_HELD", HELD)
    monkeypatch.setattr(split_reductions, "_LEAST", LEAST)


@pytest.mark.parametrize("name", LONG_ROWS)
def test_parts_in_triton(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = propose(LONG_ROWS[name], "triton")
    assert candidate.schedule.get("split") == (None if name == "no equal parts" else "8")
    interpreter.submit(interpreting.check, LONG_ROWS[name], candidate).result()


@emulated
@pytest.mark.parametrize("name", LONG_ROWS)
def test_parts_in_cuda(name: str, tmp_path: Path) -> None:
    candidate = prove(LONG_ROWS[name], tmp_path, "cuda")
    assert ("split" in candidate.schedule) == (name != "no equal parts")


WILD = """torch.cat([torch.randn(8, 1200)] + [
        torch.full((1, 1200), float("-inf")),
        torch.randn(1, 1200).where(torch.arange(1200) < 100, float("-inf")),
        torch.randn(1, 1200).where(torch.arange(1200) != 700, float("nan")),
        torch.randn(1, 1200).where(torch.arange(1200) != 3, float("inf")),
        torch.randn(1, 1200) * 1e18,
    ])"""


@emulated
@pytest.mark.parametrize("language", ["triton", "cuda"])
@pytest.mark.parametrize(
    "result", ["torch.softmax(x, -1)", "F.layer_norm(x, (1200,))", "*x.max(1), x.sum(1)"]
)
def test_nan_and_infinity_in_parts(
    result: str, language: str, tmp_path: Path, interpreter: ProcessPoolExecutor
) -> None:
    text = source(f"return {result}", WILD)
    candidate = propose(text, language)
    assert candidate.schedule["split"] == "8"
    if language == "triton":
        interpreter.submit(interpreting.check, text, candidate).result()
    else:
        assert_right(*models(text, candidate, tmp_path))


NORM = source("return F.batch_norm(x, None, None, training=True)", "torch.randn(64, 64, 80, 80)")


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_a_norm_over_channels_has_parts_for_all_multiprocessors(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert "4096 rows of 6400" in propose(NORM, language).source  # an image of a channel each
    whole = propose(NORM, language, split="off")
    assert whole.schedule["split"] == "off" and "64 rows of 409600" in whole.source


@pytest.mark.parametrize(("split", "parts"), [("2", 16), ("4", 32), ("8", 64), ("16", 128)])
def test_the_schedule_says_how_many_parts_there_are(
    split: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    columns = source("return x.sum(0)", "torch.randn(65536, 1000)")
    assert f"{1000 * parts} columns of {65536 // parts}" in propose(columns, "cuda", split=split).source


def test_a_chip_with_more_multiprocessors_has_more_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    columns = task(source("return x.sum(0)", "torch.randn(65536, 1900)"))
    parts = {
        chip: BuiltinCoder(graph_of, "cuda", chip).propose(columns, [], None).source.count("(16, 1900)")
        for chip in ("sm_80", "sm_100")
    }
    assert parts == {"sm_80": 1, "sm_100": 0}  # 16 parts, and 32


@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100"])
def test_parts_that_are_held_in_registers_have_no_spills(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    softmax = source("return torch.softmax(x, -1)", "torch.randn(64, 131072)")
    for text in (NORM, softmax):
        code = re.search(r'SOURCE = r"""(.*?)"""', propose(text, "cuda").source, re.DOTALL)
        assert code is not None
        try:
            built = sass.kernels(nvrtc.cubin(code[1], chip))
        except Unavailable as error:
            pytest.skip(str(error))
        assert len(built) == 3 and all(sass.whole(kernel).spills == 0 for kernel in built)


def test_a_cpu_has_no_parts() -> None:
    assert "split" not in propose(NORM).schedule


def test_results_are_the_same_every_time(tmp_path: Path) -> None:
    text = LONG_ROWS["reductions along columns"]
    _, model, inputs = models(text, propose(text, "cuda"), tmp_path)
    first, again = model(*inputs), model(*inputs)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
