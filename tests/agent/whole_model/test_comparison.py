"""A model's step against the same with a package: what is faster, farther from float64, or needs more memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.agent.whole_model.comparison import StepPair
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.records import ResultDeviation
from kernelwright.kernelbench.errors import UsageError

MODEL = """
import time

import torch
from torch import nn


class Slow(nn.Linear):
    wait_s = 0.005

    def forward(self, x):
        time.sleep(self.wait_s)
        return super().forward(x).square()


def build():
    torch.manual_seed(0)
    return nn.Sequential(Slow(16, 16), Slow(16, 16)), torch.randn(8, 16), lambda y: y.mean()
"""
PACKAGE = """
from types import SimpleNamespace

import torch


def apply(model):
    {check}
    for layer in model:
        layer.wait_s = {wait_s}
        stock = layer.forward
        layer.forward = lambda x, stock=stock: {code}
    return SimpleNamespace(replaced={{name: "kernel" for name, _ in model.named_children()}})
"""


def package(folder: Path, name: str, code: str = "stock(x)", wait_s: float = 0.005, check: str = "") -> Path:
    (folder / name).mkdir(parents=True)
    text = PACKAGE.format(code=code, wait_s=wait_s, check=check or "pass")
    (folder / name / "__init__.py").write_text(text)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    (made / "slow.py").write_text(MODEL)
    return made


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[StepPair]:
    with StepPair(ModelName.of("slow.py:build", folder=folder), trains=True) as made:
        yield made


@pytest.mark.timed
def test_a_faster_step_is_faster_by_its_whole_interval(pair: StepPair, folder: Path) -> None:
    assert pair.put_in([package(folder, "no_wait", wait_s=0.0)]) == {"0": "kernel", "1": "kernel"}
    found = pair.times(compiled=False)
    assert found.speedup.low > 1.3 and found.stock_s > found.drop_in_s


@pytest.mark.timed
def test_the_same_step_is_not_faster(pair: StepPair, folder: Path) -> None:
    pair.put_in([package(folder, "nothing")])
    found = pair.times(compiled=False).speedup
    assert 0.8 < found.median < 1.25


def worst(pair: StepPair) -> ResultDeviation:
    found = pair.deviations()
    assert [each.name for each in found][:2] == ["loss", "gradient of 0.weight"] and len(found) == 5
    return max(found, key=lambda each: each.drop_in_error)


def test_what_is_farther_from_float64_is_told(pair: StepPair, folder: Path) -> None:
    pair.put_in([package(folder, "off_by_a_percent", code="stock(x) * 1.01")])
    assert worst(pair).drop_in_error > 0.01 > 1e-4 > worst(pair).stock_error
    pair.put_in([package(folder, "right", code="stock(x) * 1.0")])
    assert worst(pair).drop_in_error < 1e-4


def test_what_needs_more_memory_is_told(pair: StepPair, folder: Path) -> None:
    pair.put_in([package(folder, "large", code="stock(x) + torch.ones(1 << 20).sum() * 0")])
    stock, drop_in = pair.peaks()
    assert 2 << 20 < drop_in - stock < 5 << 20


def test_what_cannot_be_put_in_is_said_in_a_line(pair: StepPair, folder: Path) -> None:
    broken = package(folder, "broken", check="raise RuntimeError('no layer\\nhere')")
    with pytest.raises(UsageError) as raised:
        pair.put_in([broken])
    assert "broken cannot be put in: RuntimeError: no layer" in str(raised.value)
    pair.put_in([])  # the worker is still there


def test_a_model_that_ends_its_process_is_said_in_a_line(folder: Path) -> None:
    (folder / "ends.py").write_text("import os\ndef build():\n    os._exit(3)\n")
    with (
        pytest.raises(UsageError, match="ended the process"),
        StepPair(ModelName.of("ends.py:build", folder=folder), trains=False),
    ):
        pass
