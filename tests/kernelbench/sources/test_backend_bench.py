"""Operators with their calls, and kernels, as BackendBench keeps them."""

import logging
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.opinfo import opinfo_calls
from kernelwright.kernelbench.sources import resolve
from kernelwright.kernelbench.sources.formats.backend_bench import traced_task
from kernelwright.kernelbench.sources.overrides import apply
from tests.helpers.foreign_tasks import called, loaded

TRACE = """Operator: aten.addmm.default
cnt: 3, ((T([4], f32), T([8, 6], f32), T([6, 4], f32, stride=(1, 6))), {})
Operator: aten.mul.Tensor
cnt: 24, ((T([8, 16], f32), T([16], f32)), {})
cnt: 2, ((T([2, 16], f16), 0.5), {})
cnt: 0, ((T([3, 3], f32), T([3, 3], f32)), {})
cnt: 1, ((T([0, 3], f32), T([3], f32)), {})
Operator: aten.cat.default
cnt: 1, (([T([2, 3], f32), T([1, 3], f32)],), {})
cnt: 1, (([T([2, 3], f32), T([2, 5], f32)], 1), {})
cnt: 1, (([T([4, 3], f32), T([4, 5], f32)], -1), {})
Operator: aten._to_copy.default
cnt: 1, ((T([2, 3], f32),), {'dtype': f16})
cnt: 1, ((T([2, 3], f32),), {'dtype': f16, 'device': 'cuda'})
Operator: aten.max_pool2d.default
cnt: 1, ((T([1, 1, 4, 4], f32), [2, 2], [2, 2], [0, 0]), {})
Operator: aten.constant_pad_nd.default
cnt: 1, ((T([2, 2], f32), [1, 1], -inf), {})
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "model_training.txt"
    path.write_text(TRACE)
    return path


def test_the_calls_of_an_operator_are_the_sizes_of_its_task(
    trace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    [task] = resolve([f"{trace}:aten.mul.Tensor"])
    assert task.id == "file:mul.Tensor"
    assert [(size.weight, size.constants["x1"]) for size in task.workload] == [
        (24, "('float32', [16])"),
        (2, "0.5"),
        (0.001, "('float32', [3, 3])"),
    ]
    (x, y), product = called(task)
    assert x.shape == (8, 16) and torch.equal(product, x * y) and 0 <= x.min() < x.max() <= 1
    (x, half), product = called(apply(task.source, task.workload[1].constants))
    assert (x.dtype, half) == (torch.float16, 0.5) and torch.equal(product, x * 0.5)
    assert "1 of 4 calls are left out: a tensor of them is empty" in caplog.text


def test_strides_lists_infinities_and_dtypes_are_arguments_too(trace: Path) -> None:
    tasks = {task.id: task for task in resolve([str(trace)])}
    assert len(tasks) == 6
    (_, _, weight), _ = called(tasks["file:addmm.default"])
    assert (weight.shape, weight.stride()) == ((6, 4), (1, 6))
    (tensors, dim), joined = called(tasks["file:cat.default"])
    assert torch.equal(joined, torch.cat(tensors, dim)) and "1 of 3 calls" in tasks["file:cat.default"].source
    _, copy = called(tasks["file:_to_copy.default"])
    assert copy.dtype == torch.float16
    _, padded = called(tasks["file:constant_pad_nd.default"])
    assert padded[0, 0] == -torch.inf


def test_a_suite_in_parquet_is_read_like_a_trace(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    rows = [
        {"op_name": "aten.relu.default", "args": "((T([4, 8], f32),), {})", "count": 7, "included_in_benchmark": True},
        {"op_name": "aten.relu.default", "args": "((T([2], f32),), {})", "count": 7, "included_in_benchmark": False},
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "suite.parquet")
    [task] = resolve([f"{tmp_path}/suite.parquet:relu.default"])
    assert called(task)[1].shape == (4, 8) and not task.workload


def test_what_cannot_be_read_is_said_in_a_line(trace: Path) -> None:
    with pytest.raises(UsageError, match=r"has no calls of aten.mul.Scalar — it has mul.Tensor: name one"):
        resolve([f"{trace}:aten.mul.Scalar"])
    with pytest.raises(UsageError, match="an argument is open"):
        traced_task("aten.relu.default", [(1, "((T([4], f32), open('/etc/passwd')), {})")], "x", "y")
    with pytest.raises(UsageError, match="a tensor is of c32"):
        traced_task("aten.relu.default", [(1, "((T([4], c32),), {})")], "x", "y")
    names = trace.with_name("names.txt")
    names.write_text(f"{trace.name}:mul.Tensor set x1=0.25\nbuiltin:level1/softmax\n")
    with pytest.raises(UsageError, match="its sizes set x1"):  # a list of tasks is one still
        resolve([str(names)])


def test_many_calls_are_those_made_most_often() -> None:
    lines = [(count, f"((T([{count + 1}], f32),), {{}})") for count in range(40)]
    file = traced_task("aten.relu.default", lines, "x", "y")
    assert file.notes == ("24 of 40 calls are left out: 16 others are called more often",)
    assert "[40]" in file.source and "[25]" in file.source and "[24]" not in file.source


KERNEL = """import torch


def helper(x):
    return x


def mul__Tensor_kernel_impl(input, other):
    return helper(input) * other
"""


def test_a_kernel_of_its_layout_is_a_candidate(tmp_path: Path) -> None:
    path = tmp_path / "mul__Tensor" / "mul__Tensor_implementation_v1.py"
    path.parent.mkdir()
    path.write_text(KERNEL)
    model = loaded(candidate_from_file(path).source).ModelNew()
    assert torch.equal(model(torch.ones(2), 3), torch.full((2,), 3.0))


def test_the_folder_of_an_operator_has_the_calls_of_opinfo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    place = "kernelwright.kernelbench.sources.formats.backend_bench.opinfo_calls"
    monkeypatch.setattr(place, lambda name: asked.append(name) or ["((T([2, 3], f32),), {})"])
    for name in ("relu_____default", "__pycache__", "relu__default"):
        (tmp_path / name).mkdir()
    (tmp_path / "relu__default" / "relu__default_implementation_v1.py").write_text("")
    (tmp_path / "relu__default" / "relu__default_implementation_v2.py").write_text("")
    [task] = resolve([str(tmp_path)])
    assert asked == ["relu.default"] and called(task)[1].shape == (2, 3)


@pytest.mark.slow
def test_opinfo_s_samples_of_an_operator() -> None:
    pytest.importorskip("expecttest")
    calls = opinfo_calls("relu.default")
    assert len(calls) > 2 and all(call.startswith("((T([") for call in calls)
    with pytest.raises(UsageError, match=r"no sample that calls relu\.none alone"):
        opinfo_calls("relu.none")
