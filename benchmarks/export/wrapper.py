"""Cost of a call of a drop-in beyond its kernel: a small RMSNorm against the bare forward of the candidate.

    python -m benchmarks wrapper

64 by 64 floats, without gradients and in the forward of a training step, on one thread. Machine: CPU. Time:
2 minutes (estimate). Writes cpu/wrapper.md.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.publishing import publish
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Task
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.winner import Winner

_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
# The minimum over 400 blocks of 100 calls: the time of Python code, which other processes can only lengthen.
_SCRIPT = """
import json, time, torch
torch.set_num_threads(1)
import small
from small.norm.kernel import ModelNew
from small.norm.reference import Model


def least(call):
    found = []
    for _ in range(400):
        began = time.perf_counter()
        for _ in range(100):
            call()
        found.append(time.perf_counter() - began)
    return 1e4 * min(found)


layer, stock, bare = Model(), Model(), ModelNew()
small.apply(torch.nn.Sequential(layer))
x, kernel = torch.randn(64, 64), small.norm
wanted = x.clone().requires_grad_()
found = {"bare": least(lambda: bare.forward(x))}
with torch.no_grad():
    found["kernel"] = least(lambda: kernel(x, layer.weight))
    found["layer"] = least(lambda: layer(x))
    found["operator"] = least(lambda: kernel.operator(x, layer.weight))
    found["stock"] = least(lambda: stock(x))
found["kernel, training"] = least(lambda: kernel(wanted, layer.weight))
found["layer, training"] = least(lambda: layer(wanted))
found["operator, training"] = least(lambda: kernel.operator(wanted, layer.weight))
found["stock, training"] = least(lambda: stock(wanted))
print(json.dumps(found))
"""
_ROWS = {
    "bare": "the candidate's forward, called by itself",
    "kernel": "`package.kernel(x, weight)`",
    "layer": "a layer after `apply`, called",
    "operator": "the operator, as compilers see it",
    "stock": "the layer as it was, eager",
}


def run() -> None:
    with Referee.start(cache=cache_folder()) as evaluator:
        task = Task(id="file:norm", level=1, source=_TASK)
        candidate = BuiltinCoder(partial(trace, evaluator.sessions.pool)).propose(task, [], None)
        evaluation = evaluator.evaluate(task, candidate, EAGER)
        machine = evaluator.target.fingerprint
    winner = Winner(
        task=task, candidate=candidate, evaluation=evaluation, command="", kernelwright="", environment=None
    )
    with TemporaryDirectory() as folder:
        out = Path(folder) / "package"
        write([PackagedKernel("norm", winner, layers={"Model": {}})], out, "small", measure=False)
        command = [sys.executable, "-W", "ignore", "-c", _SCRIPT]
        done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=True)
    times_us = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for name, label in _ROWS.items():
        cells = [times_us.get(f"{name}{when}") for when in ("", ", training")]
        bare = times_us["bare"]
        rows.append((label, *("-" if us is None else f"{us:.1f} (+{us - bare:.1f})" for us in cells)))
    publish("wrapper", "What a drop-in costs a call", ("", "µs, no gradient", "µs, training"), rows, machine)
