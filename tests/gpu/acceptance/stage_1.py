"""Stage 1: does it run there, and is the clock right."""

import contextlib
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kernelwright.kernelbench.evaluator import EAGER, Measurement
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.sandbox import landlock
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.timing.target import describe_gpu, in_use
from kernelwright.kernelbench.records import Verdict
from tests.gpu.acceptance import packages
from tests.gpu.acceptance.bench import ONCE, THRICE, Bench, itself, kernel, task, told
from tests.gpu.acceptance.running import Step

_LAYERS = ("pid_namespace", "network_namespace", "ipc_namespace", "mount_namespace", "distinct_uid",
           "control_groups", "landlock", "seccomp")  # fmt: skip
_NAMED = (
    "torch",
    "triton",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-ml-py",
    "numpy",
    "pydantic",
    "ninja",
)
_COMMANDS = ("nvidia-smi -L", "ls -l /dev/nvidia*", "which nvcc ncu compute-sanitizer g++ ninja",
             "cat /proc/driver/nvidia/params | grep Admin", "df -h /dev/shm | tail -1", "nproc")  # fmt: skip
# Chosen by hand: what the reference against itself may be off by, a known ratio, and the two clocks.
_OFF, _RATIO_OFF, _CLOCKS_OFF = 0.05, 0.1, 0.1
_WORK = 10.0  # times what a block costs once, that its calls take at least


def environment(bench: Bench) -> None:
    """Check packages, the driver's description of the GPU, and the layers of the sandbox."""
    for name in _NAMED:
        with contextlib.suppress(PackageNotFoundError):
            print(f"   {name} {version(name)}", end=";")
    print()
    for command in _COMMANDS:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        print(f"   $ {command}\n{done.stdout.rstrip()}")
    lacking = packages.missing(packages.needed("cuda")) if bench.gpu else []
    bench.check(not lacking, "packages", ", ".join(lacking) or "all that pyproject.toml asks for")
    if bench.gpu:
        with WorkerPool(threads=1, cache=bench.home, limits=Limits(), device=bench.device) as pool:
            found = describe_gpu(pool)
        fine = "error" not in found
        said = f"{found['chip']}, {found['capability']}" if fine else f"{found['error']} — {found['fix']}"
        bench.check(fine, "driver", said, **found)
        bench.check(
            not (fine and in_use(found)), "alone", (fine and in_use(found)) or "nobody else has memory"
        )
    print("   Landlock", landlock.version())
    for layer in sandbox.layers(None, bench.without, gpu=bench.gpu):
        print("   layer", layer.name, "on" if layer.on else f"off: {layer.why}")


def behind_the_sandbox(bench: Bench) -> None:
    """CUDA starts behind all layers of the sandbox; if it does not, behind each alone."""
    for kept in (_LAYERS, (), *((layer,) for layer in _LAYERS)):
        without = [layer for layer in _LAYERS if layer not in kept or layer in bench.without]
        fine = True
        with WorkerPool(
            threads=4, cache=bench.home, limits=Limits(), without=without, device=bench.device
        ) as pool:
            entry = "kernelwright.kernelbench.evaluator.timing.gpu"
            pool.import_first((entry,))
            for role in ("baseline", "candidate"):
                with pool.start(role, f"{entry}:serve", "0" * 64) as worker:
                    found = worker.ask({"do": "describe", "device": pool.worker_device}, 60)
                    status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
                size = [" ".join(line.split()) for line in status if line.startswith(("VmData", "Threads"))]
                held = "error" not in found or not bench.gpu  # without one an answer is all there is to get
                fine &= held
                behind = "all layers" if kept == _LAYERS else ", ".join(kept) or "none"
                bench.check(held, f"{role} behind {behind}", [found.get("chip", found.get("error")), *size])
        if fine:
            return


def against_itself(bench: Bench) -> None:
    """The reference against itself, inputs of 1 to 256 MiB: the ratio is 1, a block is work, clocks agree."""
    for rows in (64, 4096, 16384) if bench.gpu and not bench.small else (64,):
        size = f"{rows * 4096 * 4 >> 20} MiB"
        found, times = bench.evaluate(task(rows), itself(rows), EAGER)
        bench.check(found.verdict is Verdict.correct, size, told(found))
        if times is None or found.timing is None or found.speedup is None or found.speedup.eager is None:
            continue
        if bench.small:
            continue
        ratio, differ = found.speedup.eager, found.timing.clocks_differ
        close = abs(ratio.median - 1) < _OFF and ratio.low <= 1.0 <= ratio.high
        said = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        bench.check(close, f"{size}, ratio", said, median=ratio.median, low=ratio.low, high=ratio.high)
        block = times.blocks["candidate"][0]
        work = (block.seconds - times.fixed_s) / times.fixed_s
        said = (
            f"{work:.1f} times the {1e6 * times.fixed_s:.0f} us that a block costs once, {block.calls} calls"
        )
        bench.check(work > _WORK, f"{size}, work of a block", said, fixed_s=times.fixed_s, work=work)
        if not bench.gpu:
            continue
        said = f"{differ} times the device's, SM clocks {found.timing.clocks}"
        agree = differ is not None and abs(differ - 1) < _CLOCKS_OFF
        bench.check(agree, f"{size}, referee's clock", said, clocks_differ=differ)


def truth(bench: Bench) -> None:
    """A reference that does about three times the work: the speedup is the ratio that CUDA events give."""
    for rows in (4096, 16384):
        wanted = _ratio_by_events(rows, bench.device)
        found, _ = bench.evaluate(task(rows, THRICE), itself(rows), EAGER)
        got = found.speedup.eager if found.speedup else None
        fine = got is not None and abs(got.median / wanted - 1) < _RATIO_OFF
        said = f"{got.median:.3f}, by events {wanted:.3f}" if got else told(found)
        bench.check(fine, f"{rows * 4096 * 4 >> 20} MiB", said, wanted=wanted)


def _ratio_by_events(rows: int, device: str) -> float:
    import torch

    x = torch.randn(rows, 4096, device=device)
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


def languages(bench: Bench) -> None:
    """compile_cuda, Triton and load_inline: built by the builder, loaded and timed behind the sandbox."""
    for name in ("compile_cuda", "triton", "load_inline"):
        found, _ = bench.evaluate(task(4096), kernel(name), Measurement(("eager", "compile")))
        failed = found.timing.failed_baselines if found.timing else {}
        bench.check(found.verdict is Verdict.correct and not failed, name, told(found))
        share = found.own_kernel_share
        bench.check(share is not None and share > 0.9, f"{name}, share of own kernels", share)


def tools(bench: Bench) -> None:
    """CUPTI, Nsight Compute and compute-sanitizer, behind the sandbox."""
    from kernelwright.kernelbench.errors import KernelwrightError, Unavailable
    from kernelwright.profiling.gpu.nsight import NsightCompute
    from kernelwright.profiling.gpu.tracing import Trace
    from kernelwright.profiling.rung import Subject

    found, _ = bench.evaluate(task(1024), kernel("triton"), EAGER)
    for rung in (Trace(), NsightCompute()):
        try:
            read = rung.read(Subject(bench.referee(), task(1024), kernel("triton"), found))
            bench.check(bool(read.metrics), rung.name, f"{len(read.metrics)} metrics: {read.how}")
        except Unavailable as error:
            bench.check(False, rung.name, error)
    try:
        found, _ = bench.evaluate(task(64), kernel("triton"), EAGER, sanitize="memcheck")
        bench.check(found.verdict is Verdict.correct, "memcheck", told(found))
    except KernelwrightError as error:
        bench.check(False, "memcheck", error)


STEPS = (
    Step(environment, 60, on_cpu=True),
    Step(behind_the_sandbox, 90, on_cpu=True),
    Step(against_itself, 120, on_cpu=True),
    Step(truth, 60),
    Step(languages, 120),
    Step(tools, 90),
)
