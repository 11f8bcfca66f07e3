"""Small tasks in the formats of other projects, and what becomes of them."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.reference.task_format import for_device
from kernelwright.kernelbench.records import Task

CPU = torch.device("cpu")

SCALED_NORM: dict[str, Any] = {
    "name": "scaled_norm_d64",
    "description": "Rows by their norm, times a weight",
    "axes": {
        "rows": {"type": "var", "description": "Rows."},
        "width": {"type": "const", "value": 64},
        "half": {"type": "expr", "expression": "width // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
        "weight": {"shape": ["half"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "half"], "dtype": "float32"}},
    "constraints": ["rows > 0"],
    "reference": (
        "import torch\nimport math\n\n# The half that counts.\ndef first(x):\n    return x[:, : x.shape[1] // 2]\n\n\n"
        "@torch.no_grad()\ndef run(x, weight, eps):\n    x = first(x).float()\n"
        "    return x / math.sqrt(1.0 + eps) * weight\n"
    ),
}


def row(rows: int, eps: float = 1e-6, **inputs: dict[str, Any]) -> dict[str, Any]:
    """A workload of `SCALED_NORM`."""
    random = {"type": "random"}
    sources = {"x": random, "weight": random, "eps": {"type": "scalar", "value": eps}, **inputs}
    return {"uuid": f"w{rows}", "axes": {"rows": rows}, "inputs": sources}


def definition_folder(folder: Path, definition: dict[str, Any], rows: list[dict[str, Any]] | None) -> Path:
    """Write a folder as SOL-ExecBench has them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(definition))
    if rows is not None:
        (folder / "workload.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return folder


def solution(sources: dict[str, str], entry: str, **spec: Any) -> dict[str, Any]:
    """A solution of `SCALED_NORM`."""
    return {
        "name": "halves-v1",
        "definition": "scaled_norm_d64",
        "author": "nobody",
        "spec": {"languages": ["triton"], "target_hardware": ["LOCAL"], "entry_point": entry, **spec},
        "sources": [{"path": path, "content": content} for path, content in sources.items()],
    }


GPU_MODE = {
    "task.yml": """files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "utils.py", "source": "../utils.py"}
lang: "py"
description: |
  Add two vectors.

  Input: (a, b, out)
    - a, b: float16
tests:
  - {"size": 127, "seed": 4242}
  - {"size": 256, "seed": 4242}
benchmarks:
  - {"size": 256, "seed": 1}
  - {"size": 512, "seed": 2}
  - {"size": 512, "seed": 3}
""",
    "task.py": """from typing import TypeVar
import torch

input_t = TypeVar("input_t", bound=tuple[torch.Tensor, torch.Tensor, torch.Tensor])
output_t = TypeVar("output_t", bound=torch.Tensor)
unused_t = TypeVar("unused_t")
""",
    "reference.py": """from utils import close_to, Exact
import torch
from task import input_t, output_t


def ref_kernel(data: input_t) -> output_t:
    with Exact():
        a, b, out = data
        out[...] = a + b
        return out


def generate_input(size: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    a = torch.randn(size, device="cuda", dtype=torch.float16, generator=gen)
    b = torch.empty(size, device="cuda", dtype=torch.float16)
    b.uniform_(0, 1, generator=gen)
    c = torch.empty(size, device="cuda", dtype=torch.float16).contiguous()
    return a.contiguous(), b, c


check_implementation = close_to(ref_kernel)
""",
    "submission.py": """#!POPCORN leaderboard add
from task import input_t, output_t
import torch


def custom_kernel(data: input_t) -> output_t:
    a, b, out = data
    torch.add(a, b, out=out)
    return out
""",
    "../utils.py": '''import os
import torch


class Exact:
    """Switch off tf32."""

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None


def close_to(reference):
    return lambda data, output: torch.allclose(reference(data), output)
''',
}

ROBUST = {
    "func_forward.py": '''import torch
import torch.nn as nn
import torch.nn.functional as F


def forward_fn(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """Linear layer with a shift."""
    return F.linear(x, w) + eps


class Model(nn.Module):
    """
    A linear layer.
    """

    def __init__(self, features: int, out_features: int = 8, eps: float = 0.5):
        super().__init__()
        self.w = nn.Parameter(torch.randn(out_features, features))
        self.eps = eps

    def forward(self, x: torch.Tensor, fn=forward_fn) -> torch.Tensor:
        return fn(x, self.w, self.eps)


def get_inputs(batch: int = 4, features: int = 16):
    return [torch.randn(batch, features)]


input_names = ["x"]
''',
    "config_forward.json": json.dumps(
        {
            "single_input_configs": [{"batch": 2}],
            "single_init_configs": [{"eps": 0.25}],
            "single_shared_configs": [{"features": 32}],
            "multi_input_configs": [{"batch": 2}, {"batch": 6}],
            "multi_init_configs": [{"eps": 0.25}],
            "multi_shared_configs": [{"features": 16}, {"features": 32}],
        }
    ),
}

HARD = {
    "problem.yaml": 'name: 01_scale\nforbidden:\n  - "torch.mul"\nsota:\n  name: none\n',
    "shapes.py": 'SHAPES = [\n    {"rows": 4, "WIDTH": 8},  # small\n    {"rows": 6, "WIDTH": 8},\n]\n',
    "reference.py": '''"""Twice x."""
from __future__ import annotations

import torch
import torch.nn as nn

OP_TYPE = "scale"


class Model(nn.Module):
    def forward(self, x):
        return 2 * x


ROWS = 2
WIDTH = 8


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return []
''',
}


def written(folder: Path, files: dict[str, str], **others: str) -> Path:
    """Write the files of a folder, some of them with other texts."""
    for name, text in {**files, **{key.replace("__", "."): text for key, text in others.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def loaded(source: str) -> ModuleType:
    """Run a task or candidate as the evaluator does on a CPU."""
    module = ModuleType("loaded")
    sys.modules["loaded"] = module
    exec(compile(for_device(source, CPU), "loaded.py", "exec"), vars(module))
    return module


def called(task: Task | str, seed: int = 0) -> tuple[list[Any], Any]:
    """The inputs of a task, and what its reference makes of copies of them."""
    module = loaded(task if isinstance(task, str) else task.source)
    torch.manual_seed(seed)
    model = module.Model(*module.get_init_inputs())
    inputs = module.get_inputs()
    copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in inputs]
    return inputs, model(*copies)
