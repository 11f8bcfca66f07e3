"""Installed, kernelwright is one import package, and candidates of before it was one still evaluate."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.builds

ROOT = Path(__file__).parents[1]
TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2.0

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
from torch import nn

{line}

lib = jit.compile_cpp('''
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {{
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 2.0f;
}}
''')

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that kernelwright alone is installed to, from a copy: setuptools writes beside its sources."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "-q"]
    folder = tmp_path_factory.mktemp("installed")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    copy = tmp_path_factory.mktemp("sources")
    subprocess.run(["tar", "-cf", copy / "all.tar", "--null", "-T", "-"], cwd=ROOT, input=tracked, check=True)
    subprocess.run(["tar", "-xf", "all.tar"], cwd=copy, check=True)
    words = ["install", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder), str(copy)]
    subprocess.run([*pip, *words], check=True)
    return folder


@pytest.mark.slow
def test_it_is_one_import_package(site: Path) -> None:
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {
        "kernelwright",
        "bin",
    }
    assert not list(site.rglob("published"))
    assert list(site.glob("kernelwright/kernelbench/tasks/level1/softmax.py"))


@pytest.mark.slow
@pytest.mark.parametrize("line", ["from kernelwright import jit", "from kernelbench import jit"])
def test_a_candidate_evaluates(site: Path, tmp_path: Path, home: Path, line: str) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "candidate.py").write_text(CANDIDATE.format(line=line))
    environment = {**os.environ, "PYTHONPATH": str(site), "KERNELWRIGHT_HOME": str(home)}
    words = ["evaluate", "task.py", "candidate.py", "--effort", "quick", "--baseline", "eager", "--json"]
    command = [sys.executable, "-P", "-m", "kernelwright", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert json.loads(done.stdout)["verdict"] == "correct", done.stderr
