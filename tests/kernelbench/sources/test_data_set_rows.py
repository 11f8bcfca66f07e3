"""Tasks in the rows of KernelBook and CUDA-Agent-Ops: small files in their columns."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import called

_GATE = """import torch
from _paritybench_helpers import _mock_config
import torch.nn as nn


class Gate(nn.Module):

    def __init__(self, size, config=None, bias=True):
        super().__init__()
        self.size, self.config, self.bias = size, config, bias

    def forward(self, x):
        return torch.sigmoid(x) * self.size * self.config.scale + self.bias


def get_inputs():
    return [torch.rand([4, 4, 4, 4])]


def get_init_inputs():
    return [[3], {'config': _mock_config(scale=2), 'bias': False}]
"""
_GATE_IN_TRITON = """import torch
import triton
import triton.language as tl
import torch.nn as nn


@triton.jit
def triton_poi_fused_mul_sigmoid_0(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex))


class GateNew(nn.Module):

    def __init__(self, size, config=None, bias=True):
        super().__init__()
        self.size = size
"""
_MEAN = """import torch
import torch.nn as nn


class Mean(nn.Module):

    def forward(self, x):
        return torch.mean(x)


def get_inputs():
    return [torch.rand([4, 4])]


def get_init_inputs():
    return [[], {}]
"""
KERNEL_BOOK = [
    {
        "entry_point": "Gate", "original_triton_code": "", "python_code": _GATE,
        "triton_code": _GATE_IN_TRITON, "repo_name": "someone/gates", "module_name": "Gate",
        "synthetic": False, "uuid": 0, "licenses": ["MIT"], "stars": 3, "sha": "0" * 40,
        "repo_link": "https://github.com/someone/gates/tree/0",
    },
    {
        "entry_point": "Mean", "original_triton_code": "", "python_code": _MEAN, "triton_code": "",
        "repo_name": "someone/means", "module_name": "Mean", "synthetic": False, "uuid": 1,
        "licenses": ["BSD-3-Clause"], "stars": 0, "sha": "1" * 40, "repo_link": "",
    },
]  # fmt: skip
_OPS_CODE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return torch.diag(self.norm(x))


def get_inputs():
    return [torch.rand(8, 8)]


def get_init_inputs():
    return [8]
"""
CUDA_AGENT_OPS = [
    {"ops": ["nn.BatchNorm1d", "torch.diag"], "data_source": "torch#2", "code": _OPS_CODE},
    {"ops": '["torch.diag"]', "data_source": "torch#1", "code": _OPS_CODE},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json"])
def test_a_row_of_kernelbook_is_a_task(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"dataset_permissive.{suffix}", KERNEL_BOOK)
    gate, mean = resolve([str(path)])
    assert (gate.id, mean.id) == ("file:0_Gate", "file:1_Mean")
    assert "# Note: from KernelBook, of someone/gates, under MIT.\n" in gate.source
    (x,), found = called(gate)
    assert torch.allclose(found, torch.sigmoid(x) * 6)
    (x,), found = called(mean)
    assert torch.equal(found, x.mean())
    assert resolve([f"{path}:1"]) == resolve([f"{path}:1_Mean"]) == [mean]


def test_its_kernel_is_a_candidate(tmp_path: Path) -> None:
    path = written(tmp_path / "dataset_permissive.parquet", KERNEL_BOOK)
    found = candidate_from_file(Path(f"{path}:0_Gate"))
    assert found.language == "triton"
    assert "class ModelNew(GateNew):" in found.source
    assert "super().__init__(3, config=_mock_config(scale=2), bias=False)" in found.source


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_row_of_cuda_agent_ops_is_a_task(tmp_path: Path, suffix: str) -> None:
    rows = CUDA_AGENT_OPS[:1] if suffix == "parquet" else CUDA_AGENT_OPS
    path = written(tmp_path / f"data.{suffix}", rows)
    found = resolve([str(path)])
    assert [task.id for task in found] == ["file:0_BatchNorm1d_diag", "file:1_diag"][: len(rows)]
    (x,), diagonal = called(found[0])
    assert diagonal.shape == (8,) and x.shape == (8, 8)


def changed(**values: str) -> list[dict[str, Any]]:
    return [{**KERNEL_BOOK[0], **values}]


@pytest.mark.parametrize(("rows", "name", "said"), [
    (KERNEL_BOOK, "2", "has no row 2"),
    (KERNEL_BOOK, "0_Mean", "is 0_Gate"),
    (KERNEL_BOOK, "Gate", "has no row Gate"),
    (changed(python_code="def get_init_inputs():\n    return []\n"), "0", "does not return two parts"),
    (changed(python_code="x = 1\n"), "0", "no get_init_inputs"),
    (changed(python_code="def :"), "0", "is not Python"),
    (changed(python_code=_GATE.replace("_mock_config", "_mock_layer")), "0", "needs _mock_layer"),
])  # fmt: skip
def test_what_is_no_task_is_refused_in_a_line(
    tmp_path: Path, rows: list[dict[str, Any]], name: str, said: str
) -> None:
    path = written(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UsageError, match=said) as refusal:
        resolve([f"{path}:{name}"])
    assert refusal.value.fix and "\n" not in str(refusal.value)


def test_a_row_that_is_no_task_leaves_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "rows.jsonl", [*changed(python_code="x = 1\n"), KERNEL_BOOK[1]])
    assert [task.id for task in resolve([str(path)])] == ["file:1_Mean"]
    assert "left out" in caplog.text and "rows.jsonl:0_Gate" in caplog.text
