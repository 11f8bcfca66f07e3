"""Audits with the real evaluator: on the CPU, where kernels are timed, and in emulation, where they are not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.auditing import REFERENCE, checkout, cuda_l1, result, run_folder

pytestmark = [pytest.mark.slow, pytest.mark.builds]
RIGHT = REFERENCE.replace("class Model(", "class ModelNew(")
WRONG = RIGHT.replace("+ 1.0", "+ 1.1")
CUDA = '''
import torch
from torch import nn

from kernelwright import jit

module = jit.compile_cuda(r"""
extern "C" __global__ void relu_scale(const float* x, float* y, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f) * 2.0f + 1.0f;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        module.relu_scale(((x.numel() + 255) // 256,), (256,), (x, y, x.numel()))
        return y
'''


def kernelwright_command(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *map(str, arguments)]
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_a_run_folder_is_graded_on_the_cpu(tmp_path: Path, home: Path) -> None:
    claims = {
        "1": [result(True, 1.0, 50.0), result(False, sample=1)],
        "2": [result(True)],
        "9": [result(True)],
    }
    kernels = {(1, 0): RIGHT, (1, 1): RIGHT, (2, 0): WRONG, (3, 0): "def ModelNew(:", (9, 0): RIGHT}
    folder, out = run_folder(tmp_path, kernels, claims), tmp_path / "audit"
    done = kernelwright_command(
        home, "audit", folder, "--kernelbench-dir", checkout(tmp_path), "--effort", "quick", "--baseline", "eager",
        "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "5 kernels: 2 correct, 1 build error, 1 not graded, 1 wrong output" in done.stdout
    assert "[5/5]" in done.stderr and "unknown task kernelbench:9/1" not in done.stderr
    page = (out / "audit.md").read_text()
    assert "claimed correct, wrong output" in page and "claimed wrong, correct" in page
    assert "claimed 50.00×, not measured" in page  # on a GPU
    results = json.loads((out / "kernelbench" / "level1" / "eval_results.json").read_text())
    assert [entry["correctness"] for entry in results["1"]] == [True, True]
    assert results["1"][0]["runtime"] > 0 and results["1"][0]["ref_runtime"] > 0
    assert (results["2"][0]["correctness"], results["3"][0]["compiled"]) == (False, False)
    assert {path.name for path in out.iterdir()} >= {"run.db", "report.html", "summary.json", "archive.json"}
    again = kernelwright_command(home, "audit", "--resume", out)
    assert again.returncode == 0, again.stderr
    assert "[" not in again.stderr.splitlines()[0] and "2 correct" in again.stdout


def test_kernels_for_a_gpu_are_right_in_emulation_and_never_faster(tmp_path: Path, home: Path) -> None:
    kernels = {
        1: CUDA,
        2: CUDA.replace("+ 1.0f", "+ 1.5f"),
        3: RIGHT,
        4: CUDA.replace("i < n", "i <= n").replace("+ 255)", "+ 256)"),
        5: RIGHT.replace("torch.relu(x)", "torch.relu(x.cuda())"),
    }
    archive, out = cuda_l1(tmp_path / "h100.json", kernels), tmp_path / "audit"
    done = kernelwright_command(home, "audit", archive, "--target", "sm_90", "--out", out)
    assert done.returncode == 0, done.stderr
    page = (out / "audit.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| 1/")}
    assert "| right in emulation | claimed 2.00×, not measured |" in rows["1/1"]
    assert "| wrong output | claimed correct, wrong output |" in rows["1/2"]
    assert "| right on the CPU | claimed 2.00×, not measured |" in rows["1/3"]
    assert "| runtime error | claimed correct, runtime error |" in rows["1/4"]
    assert "| not checked | claimed 2.00×, not checked | not checked: it asks for a GPU" in rows["1/5"]
    assert "vs eager" not in page and "vs eager" not in done.stdout
    results = json.loads((out / "kernelbench" / "level1" / "eval_results.json").read_text())
    assert {entries[0]["runtime"] for entries in results.values()} == {-1.0}
