"""Acceptance of a GPU, step by step: does everything run there, is the clock right, is what is published true.

    python -m tests.gpu.acceptance cuda:0 [STEP ...]     # all steps, in the order in which they stand here

Each step prints lines that begin with PASS or FAIL and has STEP_S seconds (environment variable, 120); one that
fails or takes longer does not keep the others from running. WITHOUT="LAYER ..." leaves layers of the sandbox off.
The exit status is 1 if anything failed. `cpu` instead of cuda:0 is a dry run of what needs no GPU.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator import EAGER, Effort, Measurement, Protocol, Referee, trial
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.sandbox import landlock
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda:0"
GPU = DEVICE != "cpu"
HOME = Path(os.environ.get("KERNELWRIGHT_HOME") or tempfile.mkdtemp(prefix="kernelwright-acceptance-"))
STEP_S = float(os.environ.get("STEP_S", "120"))
WITHOUT = tuple(os.environ.get("WITHOUT", "").split())
LAYERS = ("pid_namespace", "network_namespace", "ipc_namespace", "mount_namespace", "distinct_uid", "control_groups",
          "landlock", "seccomp")  # fmt: skip
PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-bindings", "nvidia-ml-py", "pydantic", "sqlalchemy", "openai",
            "numpy", "pandas", "ninja")  # fmt: skip
COMMANDS = ("nvidia-smi -L", "nvidia-smi --query-gpu=driver_version --format=csv,noheader", "ls -l /dev/nvidia*",
            "which nvcc ncu compute-sanitizer g++ ninja", "cat /proc/driver/nvidia/params | grep Admin")  # fmt: skip

REFERENCE = """
import torch
from torch import nn

rows = {rows}

class Model(nn.Module):
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(rows, 4096)]

def get_init_inputs():
    return []
"""
ONCE = "torch.relu(x * 2.0) + 1.0"
THRICE = "torch.relu(x * 2.0) + 1.0 + 0.0 * torch.relu(x.flip(0).flip(0))"
TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def kernel(x, y, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    v = tl.load(x + at) * 2.0
    tl.store(y + at, tl.where(v < 0.0, 0.0, v) + 1.0)

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.numel() // 1024,)](x, y, block=1024)
        return y
"""
CUDA = """
import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cuda(r'''
extern "C" __global__ void kernel(const float* __restrict__ x, float* __restrict__ y, long n) {
    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) { const float v = x[i] * 2.0f; y[i] = (v < 0.0f ? 0.0f : v) + 1.0f; }
}
''')

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.kernel(((x.numel() + 255) // 256,), (256,), (x, y, x.numel()))
        return y
"""
INLINE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

lib = load_inline("two", cpp_sources="torch::Tensor two(torch::Tensor x);", functions=["two"], cuda_sources=r'''
#include <ATen/cuda/CUDAContext.h>
__global__ void kernel(const float* x, float* y, long n) {
    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) { const float v = x[i] * 2.0f; y[i] = (v < 0.0f ? 0.0f : v) + 1.0f; }
}
torch::Tensor two(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const auto stream = at::cuda::getCurrentCUDAStream();
    kernel<<<(x.numel() + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
''')

class ModelNew(nn.Module):
    def forward(self, x):
        return lib.two(x)
"""

failures = 0
_evaluators: dict[tuple[object, ...], Referee] = {}
_timings: list[Any] = []  # of each evaluation, as `timing.Timings`


def report(passed: bool, *words: object) -> None:
    global failures
    failures += not passed
    print("   PASS" if passed else "   FAIL", *words, flush=True)


def task(rows: int, expression: str = ONCE) -> Task:
    source = REFERENCE.format(rows=rows, expression=expression)
    return Task(id=f"acceptance:{rows}", level=1, source=source)


def candidate(source: str) -> Candidate:
    return Candidate(source=source, language=language_of(source), author="acceptance")


def itself(rows: int) -> Candidate:
    return candidate(task(rows).source.replace("class Model(", "class ModelNew("))


def evaluator(without: Sequence[str] = (), **options: Any) -> Referee:
    """One for each set of options, kept from step to step."""
    key = (tuple(without), *options.items())
    if key not in _evaluators:
        effort = Effort(rounds=5, processes=1, most_processes=2, half_width=1.0)
        protocol = Protocol(effort=effort, **options)
        _evaluators[key] = Referee.start(
            cache=HOME, device=DEVICE, without=(*without, *WITHOUT), protocol=protocol
        )
    return _evaluators[key]


def environment() -> None:
    """What is installed, and which layers of the sandbox there are."""
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            print(f"   {name} {version(name)}", end=";")
    print()
    for command in COMMANDS:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        print(f"   $ {command}\n{done.stdout.rstrip()}")
    print("   Landlock", landlock.version())
    for layer in sandbox.layers(None, WITHOUT, gpu=GPU):
        print("   layer", layer.name, "on" if layer.on else f"off: {layer.why}")


def behind_the_sandbox() -> None:
    """CUDA starts behind all layers; if not, behind each alone."""
    entry = "kernelwright.kernelbench.evaluator.timing.ceilings"
    for kept in (LAYERS, (), *((layer,) for layer in LAYERS)):
        without = [layer for layer in LAYERS if layer not in kept or layer in WITHOUT]
        fine = True
        with WorkerPool(threads=4, cache=HOME, limits=Limits(), without=without, device=DEVICE) as pool:
            pool.import_first((entry,))
            for role in ("baseline", "candidate"):
                with pool.start(role, f"{entry}:serve", "0" * 64) as worker:
                    found = worker.ask({"do": "describe", "device": DEVICE}, 60)
                    status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
                    size = [
                        " ".join(line.split()) for line in status if line.startswith(("VmData", "Threads"))
                    ]
                fine &= "error" not in found or not GPU
                report("error" not in found or not GPU, role, "all" if kept == LAYERS else kept, found, size)
        if kept == LAYERS and fine:
            return


def against_itself() -> None:
    """The reference against itself, inputs of 1 to 256 MiB: the ratio, and what a block costs once."""
    for rows in (64, 4096, 16384) if GPU else (64,):
        found = evaluator().evaluate(task(rows), itself(rows), EAGER)
        if found.timing is None or found.speedup is None or found.speedup.eager is None:
            report(False, rows, found.verdict, found.reason[:300])
            continue
        ratio, times = found.speedup.eager, _timings[-1]
        block = times.blocks["candidate"][0]
        work_s = block.seconds - times.fixed_s
        report(
            abs(ratio.median - 1) < 0.05 or (ratio.low <= 1.0 <= ratio.high < 1.5 * ratio.low),
            f"{rows * 4096 * 4 >> 20} MiB: {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}],",
            f"candidate {found.timing.candidate_us.median:.1f} us, by the device {found.timing.device_us or 0:.1f} us,",
            f"N {block.calls}, fixed cost {1e6 * times.fixed_s:.0f} us, work {work_s / times.fixed_s:.1f} times that,",
            f"clocks {found.timing.clocks}, total {found.stages.total_s:.1f} s",
        )


def truth() -> None:
    """A reference that does about three times the work: the speedup is the ratio of CUDA events."""
    for rows in (4096, 16384) if GPU else (64,):
        found = evaluator().evaluate(task(rows, THRICE), itself(rows), EAGER)
        wanted = _ratio_by_events(rows) if GPU else None
        got = found.speedup.eager if found.speedup else None
        passed = got is not None and (wanted is None or abs(got.median / wanted - 1) < 0.1)
        report(passed, rows, found.verdict, found.reason[:200], got, "by events", wanted)


def _ratio_by_events(rows: int) -> float:
    x = torch.randn(rows, 4096, device=DEVICE)
    times = []
    for expression in (THRICE, ONCE):
        call = eval(f"lambda: {expression}", {"torch": torch, "x": x})
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(20):
            call()
        begin.record()
        for _ in range(200):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    del x
    torch.cuda.empty_cache()
    return times[0] / times[1]


def languages() -> None:
    """compile_cuda, Triton and load_inline: built in the builder, loaded and timed behind the sandbox."""
    for name, source in (("compile_cuda", CUDA), ("triton", TRITON), ("load_inline", INLINE)):
        found = evaluator().evaluate(task(4096), candidate(source), Measurement(("eager", "compile")))
        report(found.verdict is Verdict.correct, name, *_told(found))


def tools() -> None:
    """compute-sanitizer, CUPTI and ncu, behind the sandbox."""
    from kernelwright.profiling.gpu.nsight import NsightCompute
    from kernelwright.profiling.gpu.tracing import Trace
    from kernelwright.profiling.rung import Subject

    found = evaluator().evaluate(task(1024), candidate(TRITON), EAGER)
    for rung in (Trace(), NsightCompute()):
        with _reported(rung.name):
            read = rung.read(Subject(evaluator(), task(1024), candidate(TRITON), found))
            metrics = getattr(read, "metrics", ())
            report(bool(metrics), rung.name, len(metrics), "metrics", "" if metrics else read)
    with _reported("memcheck"):
        found = evaluator(sanitize="memcheck").evaluate(task(64), candidate(TRITON), EAGER)
        report(found.verdict is Verdict.correct, "memcheck", found.verdict, found.reason[:400])


def suite() -> None:
    """The builtin coder's kernels for four tasks, against eager and torch.compile."""
    names = ("level1/softmax", "level1/layer_norm", "level1/sum_columns", "level2/swiglu_gate")
    for language in ("triton", "cuda"):
        command = [sys.executable, "-m", "kernelwright", "run", *(f"builtin:{name}" for name in names), "--target", DEVICE,
                   "--language", language, "--rounds", "1", "--effort", "quick",
                   "--out", f"{HOME}/run-{language}"]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
        )
        file = HOME / f"run-{language}" / "summary.json"
        correct = json.loads(file.read_text())["correct"] if file.exists() else 0
        told = ("\n", done.stdout[-2500:], done.stderr[-1500:])
        report(correct == len(names), language, f"{correct} of {len(names)} correct", *told)


def _told(found: Evaluation) -> list[object]:
    timing = found.timing
    told: list[object] = [found.verdict, found.reason[:600]]
    if timing is not None:
        compiled = timing.compile_us.median if timing.compile_us else None
        told += [f"{timing.candidate_us.median:.1f} us, eager {timing.eager_us.median:.1f}, compile {compiled},",
                 f"by the device {timing.device_us}, failed baselines {timing.failed_baselines},"]  # fmt: skip
    return [*told, f"own share {found.own_kernel_share}, {found.stages}"]


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the next tool is tried
        report(False, name, type(error).__name__, str(error)[:500])


def _alarm(*_: object) -> None:
    raise TimeoutError(f"longer than {STEP_S:g} s")


def main() -> int:
    steps = (environment, behind_the_sandbox, against_itself, truth, languages, tools, suite)
    chosen = [step for step in steps if step.__name__ in sys.argv[2:] or not sys.argv[2:]]
    measure = trial.measure
    trial.measure = lambda *a, **k: _timings.append(measure(*a, **k)) or _timings[-1]
    signal.signal(signal.SIGALRM, _alarm)
    for step in chosen:
        started = time.monotonic()
        print(f"== {step.__name__}: {step.__doc__}", flush=True)
        signal.setitimer(signal.ITIMER_REAL, STEP_S)
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the next step is tried
            report(False, step.__name__, type(error).__name__, str(error)[:600])
            traceback.print_exc(limit=-4, file=sys.stdout)
            while _evaluators:
                _evaluators.popitem()[1].close()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(f"== {step.__name__}: {time.monotonic() - started:.0f} s", flush=True)
    for each in _evaluators.values():
        each.close()
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
