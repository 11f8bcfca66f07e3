"""Triton kernels for any sizes: right in the interpreter at several, and built for chips that are not there."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.chips import build_launches
from tests.helpers.builtin.free import free_kernels, free_source, hold
from tests.helpers.builtin.free_tasks import BATCH, OF_ROWS, RMS, WEIGHTS
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.builds

NAMES = ("rms_norm", "gelu", "softmax", "add_norm", "swiglu", "cross_entropy", "mean_of_all", "sum_of_rows")
TWO = free_source(RMS, BATCH, WEIGHTS, batch=50, length=40)


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_rows(name: str, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    text = OF_ROWS[name]
    rows = int(text.partition("rows = ")[2].split("\n")[0])
    found = free_kernels(text, "triton", rows=rows)
    points = [{"rows": n} for n in (1, 7, rows, 331)]
    interpreter.submit(held, found, text, tmp_path, points).result()


@pytest.mark.slow
def test_any_batch_and_length(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    found = free_kernels(TWO, "triton", batch=50, length=40)
    points = [{"batch": batch, "length": length} for batch, length in ((1, 1), (7, 13), (61, 3))]
    interpreter.submit(held, found, TWO, tmp_path, points).result()


def held(*given) -> None:  # type: ignore[no-untyped-def]
    """Compare in the interpreter, which hands no module back."""
    *first, points = given
    hold(*first, *points)


@pytest.mark.parametrize("name", ["softmax", "mean_of_all", "sum_of_rows"])
def test_kernels_are_built_for_chips(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OF_ROWS[name]
    rows = int(text.partition("rows = ")[2].split("\n")[0])
    found = free_kernels(text, "triton", rows=rows)
    new = hold(found, text, tmp_path)
    width = 5000 if name == "softmax" else 96

    def run() -> None:
        for number in (1, 16, 23):
            x = torch.zeros(number, width)
            new.ModelNew()(*[x] * (2 if name == "mean_of_all" else 1))

    build_launches(run, tmp_path, monkeypatch)
