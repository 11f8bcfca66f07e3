"""A run by parts with real processes: kernels are compiled, verified and timed, alone and put together."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint, Reply
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.database import RunDatabase
from tests.helpers.parts import TASK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # whole runs, beside other tests

# Both files have the same names at their top.
KERNEL = '''
import torch
from torch import nn
from kernelwright import jit

SOURCE = r"""
#include <cmath>
extern "C" void f(const float* x, const float* factor, float* out, long rows, long columns) {{
    for (long row = 0; row < rows; ++row)
        for (long column = 0; column < columns; ++column) {{
            float v = x[row * columns + column];
            for (int step = 0; step < 8; ++step)
                v = {step};
            out[row * columns + column] = {result};
        }}
}}
"""
lib = jit.compile_cpp(SOURCE)


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.{weight} = nn.Parameter(torch.rand(256) + 0.5)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Weights()

    def forward(self, x):
        out = torch.empty_like(x)
        lib.f(x, self.part.{weight}, out, *x.shape)
        return out
'''
BLOCK = KERNEL.format(weight="scale", step="std::abs(v * factor[column]) - 0.5f", result="v")
HEAD = KERNEL.format(weight="gain", step="std::abs(v * factor[column]) - 0.25f", result="v * v")


def task_of(body: dict[str, Any]) -> str:
    found = re.search(r"^# The task: (\S+)$", body["messages"][-1]["content"], re.MULTILINE)
    return found[1] if found is not None else ""


def script(body: dict[str, Any], number: int) -> Reply:
    task = task_of(body)
    if not task:
        return Reply('{"ready": true}')  # a preflight
    file = {"file:task#blocks.0": BLOCK, "file:task#head": HEAD}.get(task, BLOCK.replace("lib.f", "lib.g"))
    return Reply(f"```python\n{file}```\n")


def test_parts_are_won_put_together_and_measured_in_a_run_that_is_killed_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    out = tmp_path / "out"
    options = "--coder llm --model gpt-4.1 --judge none --seed none --repairs 0 --rounds 1".split()
    options += "--effort quick --baseline eager --tasks-at-once 1".split()
    with FakeEndpoint().serving() as endpoint:
        endpoint.script = script
        command = [sys.executable, "-m", "kernelwright", "run"]
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": endpoint.base_url,
            "KERNELWRIGHT_HOME": str(tmp_path / "home"),
        }
        first = subprocess.Popen(
            [*command, str(tmp_path / "task.py"), *options, "--out", str(out)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while len({task_of(body) for body in endpoint.requests} - {""}) < 2:
            assert first.poll() is None
            time.sleep(0.05)
        time.sleep(1.0)  # the second answer is there, and its file is being evaluated
        first.send_signal(signal.SIGKILL)
        first.wait()
        resume = [*command, "--resume", str(out), "--json"]
        done = subprocess.run(resume, env=environment, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr
        asked = Counter(filter(None, map(task_of, endpoint.requests)))
        again = [*command, "--replay", str(out), "--out", str(tmp_path / "again")]
        replayed = subprocess.run(again, env=environment, capture_output=True, text=True, timeout=800)
        assert "The same decisions" in replayed.stderr, replayed.stderr
    summary = json.loads(done.stdout)
    assert (summary["total"], summary["correct"], len(summary["parts"])) == (1, 1, 2), done.stderr
    assert max(asked["file:task#blocks.0"], asked["file:task#head"]) == 1
    with RunDatabase.open(out, read_only=True) as database:
        together, *_, winner = database.attempts("file:task")
    assert together.candidate.author == "parts" and together.evaluation.verdict is Verdict.correct
    assert "class Weights_head" in together.candidate.source and "lib_head = " in together.candidate.source
    assert winner.confirms and winner.candidate == together.candidate
    assert winner.evaluation.speedup is not None and winner.evaluation.speedup.eager is not None
    assert winner.evaluation.speedup.eager.median > 1
    assert (out / "best" / "file_task.py").read_text() == together.candidate.source
