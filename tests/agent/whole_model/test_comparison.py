"""A model's step against the same with packages: what is faster, farther from float64, or needs more memory."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.agent.whole_model.comparison import StepBlocks, StepPair, compare, step_times
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.records import ResultDeviation, StepTimes
from kernelwright.kernelbench.errors import UsageError

MODEL = """
import time

import torch
from torch import nn


def squared(x):
    return x.square()


class Slow(nn.Linear):
    wait_s = 0.005

    def forward(self, x):
        time.sleep(self.wait_s)
        return squared(super().forward(x))


def build():
    return nn.Sequential(Slow(16, 16), Slow(16, 16)), lambda rows=8: torch.randn(rows, 16), lambda y: y.mean()
"""
PACKAGE = """
import sys
from types import SimpleNamespace

import torch


def apply(model):
    {check}
    for layer in model:
        layer.wait_s = {wait_s}
        stock = layer.forward
        layer.forward = lambda x, stock=stock: {code}
    replaced = {{name: "kernel" for name, _ in model.named_children()}}
    return SimpleNamespace(replaced=replaced, elsewhere={{}})


def report(model):
    calls = SimpleNamespace(by_kernel={{}}, by_layer={{"it has another shape": 2}})
    return SimpleNamespace(layers={{"0": calls}})
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


@pytest.fixture
def pair(folder: Path) -> Iterator[StepPair]:
    with StepPair(ModelName.of("slow.py:build", folder=folder), trains=True) as made:
        yield made


def times(pair: StepPair, *sizes: str) -> StepTimes:
    workload = ModelName.of("torch.nn:ReLU", sizes=sizes).workload
    return step_times(workload, [pair.blocks(compiled=False)])


@pytest.mark.timed
def test_a_faster_step_is_faster_by_its_whole_interval(pair: StepPair, folder: Path) -> None:
    assert pair.put_in(package(folder, "no_wait", wait_s=0.0)) == {"0": "kernel", "1": "kernel"}
    found = times(pair)
    assert found.speedup.low > 1.3 and found.stock_s > found.drop_in_s and not found.sizes


@pytest.mark.timed
def test_the_same_step_is_not_faster(pair: StepPair, folder: Path) -> None:
    pair.put_in(package(folder, "nothing"))
    found = times(pair).speedup
    assert 0.8 < found.median < 1.25


@pytest.mark.timed
def test_sizes_are_told_apart_and_count_by_their_weights(folder: Path) -> None:
    sizes = ["rows=1", "rows=512,weight=3"]
    slow = package(folder, "slow_at_512", code="(time.sleep(0.02 * (len(x) > 1)), stock(x))[1]")
    (slow / "__init__.py").write_text(f"import time\n{(slow / '__init__.py').read_text()}")
    with StepPair(ModelName.of("slow.py:build", sizes=sizes, folder=folder), trains=False) as pair:
        pair.keep_exact()
        pair.put_in(slow)
        found = times(pair, *sizes)
        assert {each.size for each in pair.deviations()} == {"rows=1", "rows=512"}
    one, other = found.sizes["rows=1"], found.sizes["rows=512"]
    assert 0.8 < one.speedup.median < 1.25 and other.speedup.high < 0.5
    assert found.drop_in_s == pytest.approx((one.drop_in_s + 3 * other.drop_in_s) / 4, rel=0.2)


def test_an_interval_spans_pairs_of_processes() -> None:
    """Within each pair all blocks agree; what a process is slower by alone is no speedup."""
    workload = ModelName.of("torch.nn:ReLU").workload
    one, other = (StepBlocks([[1.0] * 15], [[1 / ratio] * 15]) for ratio in (1.03, 0.99))
    assert step_times(workload, [one]).speedup.low == pytest.approx(1.03)
    both = step_times(workload, [one, other]).speedup
    assert both.low == pytest.approx(0.99) and both.high == pytest.approx(1.03)


def test_sizes_count_by_weight() -> None:
    workload = ModelName.of("torch.nn:ReLU", sizes=["rows=1", "rows=2,weight=3"]).workload
    found = step_times(workload, [StepBlocks([[1.0] * 15, [2.0] * 15], [[0.5] * 15, [2.0] * 15])])
    assert (found.stock_s, found.drop_in_s) == (1.75, 1.625)
    assert found.speedup.median == pytest.approx(1.75 / 1.625)
    assert [each.speedup.median for each in found.sizes.values()] == [2.0, 1.0]


def worst(pair: StepPair, replacing: Path) -> ResultDeviation:
    pair.keep_exact()
    pair.put_in(replacing)
    found = pair.deviations()
    assert [each.name for each in found][:2] == ["loss", "gradient of 0.weight"] and len(found) == 5
    return max(found, key=lambda each: each.drop_in_error)


def test_what_is_farther_from_float64_is_told(pair: StepPair, folder: Path) -> None:
    found = worst(pair, package(folder, "off_by_a_percent", code="stock(x) * 1.01"))
    assert found.drop_in_error > 0.01 > 1e-4 > found.stock_error and not found.within


def test_a_gradient_that_is_lost_is_told(pair: StepPair, folder: Path) -> None:
    found = worst(pair, package(folder, "detaches", code="stock(x).detach() + layer.bias"))
    assert found.drop_in_error == math.inf and not found.within


def test_what_is_as_near_to_float64_is_told(pair: StepPair, folder: Path) -> None:
    found = worst(pair, package(folder, "right", code="stock(x) * 1.0"))
    assert found.drop_in_error < 1e-4 and found.within


def test_a_function_is_replaced_on_one_side_alone(pair: StepPair, folder: Path) -> None:
    check = 'sys.modules["slow"].squared = lambda x: 1.01 * x * x'
    found = worst(pair, package(folder, "function", check=check))
    assert found.drop_in_error > 0.01 > 1e-4 > found.stock_error


def test_what_needs_more_memory_is_told(pair: StepPair, folder: Path) -> None:
    pair.put_in(package(folder, "large", code="stock(x) + torch.ones(1 << 20).sum() * 0"))
    stock, drop_in = pair.peaks()
    assert 2 << 20 < drop_in - stock < 5 << 20


def test_kernels_that_compute_no_call_are_told_with_the_reason(pair: StepPair, folder: Path) -> None:
    pair.put_in(package(folder, "elsewhere"))
    assert pair.unreached() == "it has another shape"


def test_a_kernel_that_computes_a_call_is_reached(pair: StepPair, folder: Path) -> None:
    reached = package(folder, "reached")
    text = (reached / "__init__.py").read_text().replace("by_kernel={}", 'by_kernel={"norm": 1}')
    (reached / "__init__.py").write_text(text)
    pair.put_in(reached)
    assert pair.unreached() == ""


def test_a_model_that_has_no_step_in_float64_is_compared_without(folder: Path) -> None:
    text = MODEL.replace("squared(super().forward(x))", "squared(super().forward(x)) @ torch.eye(16)")
    (folder / "single.py").write_text(text.replace("wait_s = 0.005", "wait_s = 0.0"))
    found = compare(ModelName.of("single.py:build", folder=folder), False, package(folder, "nothing_else"))
    assert "fails in a step: RuntimeError: expected m1 and m2 to have the same dtype" in found.not_exact
    assert found.deviations == () and found.compiled is not None


def test_what_cannot_be_put_in_is_said_in_a_line(pair: StepPair, folder: Path) -> None:
    broken = package(folder, "broken", check="raise RuntimeError('no layer\\nhere')")
    with pytest.raises(UsageError) as raised:
        pair.put_in(broken)
    assert "broken cannot be put in: RuntimeError: no layer" in str(raised.value)
    pair.put_in(package(folder, "whole"))  # the worker is still there


def test_a_model_that_ends_its_process_is_said_in_a_line(folder: Path) -> None:
    (folder / "ends.py").write_text("import os\ndef build():\n    os._exit(3)\n")
    with (
        pytest.raises(UsageError, match="ended the process"),
        StepPair(ModelName.of("ends.py:build", folder=folder), trains=False),
    ):
        pass
