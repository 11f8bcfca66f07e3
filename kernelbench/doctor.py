"""What this machine can build, run, time and profile, each as on, or off with the way to get it."""

import importlib.util
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelbench.errors import InfrastructureError
from kernelbench.evaluator import Evaluator
from kernelbench.evaluator.target import describe_gpu
from kernelbench.evaluator.workers import WorkerPool
from kernelbench.machine import compiler
from kernelbench.records import Layer, Record, Target


class Findings(Record):
    target: Target
    items: tuple[Layer, ...]


def examine(evaluator: Evaluator, profilers: Iterable[Layer], ceilings: Iterable[Layer]) -> Findings:
    """Measures the machine's ceilings if that was not done before (seconds).

    `ceilings`: what else is known of them.
    """
    target, gpu = evaluator.target, _gpu(evaluator.pool)
    machine = (*_machine(target), *ceilings)
    return Findings(target=target, items=(*_languages(), gpu, *profilers, *machine, *evaluator.layers))


def _languages() -> Iterator[Layer]:
    found = compiler()
    fix = "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX"
    yield Layer(name="language cpp", on=found is not None, why=found or fix)
    triton = importlib.util.find_spec("triton") is not None
    why = "interpreted on the CPU: checked, not timed" if triton else "pip install 'kernelwright[cuda]'"
    yield Layer(name="language triton", on=triton, why=why)
    nvcc = shutil.which("nvcc")
    emulated = "emulated on the CPU: checked, not timed; the CUDA toolkit's nvcc would build load_inline's"
    why = f"load_inline, by {nvcc}; a GPU runs it" if nvcc else emulated if found else fix
    yield Layer(name="language cuda", on=bool(nvcc or found), why=why)


def _gpu(pool: WorkerPool) -> Layer:
    """The first one, as a target."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return Layer(name="target cuda:0", on=False, why="there is no NVIDIA device")
    try:
        with WorkerPool(threads=1, cache=pool.cache, limits=pool.limits, device="cuda:0") as seeing:
            found = describe_gpu(seeing, "cuda:0")
    except InfrastructureError as error:
        return Layer(name="target cuda:0", on=False, why=str(error))
    if "error" in found:
        why = f"{found['error']}; does it lack pip install 'kernelwright[cuda]'?"
        return Layer(name="target cuda:0", on=False, why=why)
    return Layer(
        name="target cuda:0", on=True, why=f"{found['chip']}, {found['capability']}, CUDA {found['cuda']}"
    )


def _machine(target: Target) -> Iterator[Layer]:
    mark, best = target.fingerprint, target.ceilings
    gib = mark.memory_bytes / (1 << 30)
    yield Layer(name="chip", on=True, why=f"{mark.chip}, {mark.threads} threads, {gib:.0f} GiB")
    copies = (
        f"{best.copy_bytes_s / 1e9:.1f} GB/s from memory, {best.cached_copy_bytes_s / 1e9:.1f} GB/s in cache"
    )
    yield Layer(name="copy bandwidth", on=True, why=copies)
    yield Layer(name="fp32 matmul", on=True, why=f"{best.fp32_flops_s / 1e9:.0f} GFLOP/s")
