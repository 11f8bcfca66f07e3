"""Capabilities of this machine to build, run, time and profile; each is on, or off with the way to get it."""

import importlib.util
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite, Unavailable
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.evaluator.memory import eviction
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.timing.target import describe_gpu, in_use
from kernelwright.kernelbench.machine import compiler, last_level_caches
from kernelwright.kernelbench.records import Capability, Record, Target


class Findings(Record):
    target: Target
    items: tuple[Capability, ...]


def examine(
    evaluator: LocalEvaluator, profilers: Iterable[Capability], ceilings: Iterable[Capability]
) -> Findings:
    """Examine the machine; its ceilings are measured if that was not done before (seconds).

    `ceilings`: further known ones.
    """
    target, gpu = evaluator.target, _gpu(evaluator.sessions.pool)
    machine = (*_machine(target), *ceilings)
    return Findings(
        target=target, items=(*_languages(), gpu, *profilers, *machine, *evaluator.sessions.pool.layers())
    )


def _languages() -> Iterator[Capability]:
    found = compiler()
    fix = "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX"
    yield Capability(name="language cpp", on=found is not None, why=found or fix)
    triton = importlib.util.find_spec("triton") is not None
    why = "interpreted on the CPU: checked, not timed" if triton else "pip install 'kernelwright[cuda]'"
    yield Capability(name="language triton", on=triton, why=why)
    nvcc = shutil.which("nvcc")
    emulated = "emulated on the CPU: checked, not timed; the CUDA toolkit's nvcc would build load_inline's"
    why = f"load_inline, by {nvcc}; a GPU runs it" if nvcc else emulated if found else fix
    yield Capability(name="language cuda", on=bool(nvcc or found), why=why)
    yield _nvrtc()


def _nvrtc() -> Capability:
    """Return the capability to build CUDA C++ for GPUs without nvcc."""
    try:
        why = f"{nvrtc.version()}: builds compile_cuda's kernels for a GPU, and all kernels for named chips"
    except Unavailable as error:
        return Capability(name="NVRTC", on=False, why=str(error))
    return Capability(name="NVRTC", on=True, why=why)


def _gpu(pool: WorkerPool) -> Capability:
    """Return the capability of the first GPU as a target."""
    name = "target cuda:0"
    if not any(Path("/dev").glob("nvidia*")):
        fix = "install its driver, or start the container with --gpus all"
        return Capability(name=name, on=False, why=f"no /dev/nvidia0; where there is a GPU, {fix}")
    try:
        with WorkerPool(threads=1, cache=pool.cache, limits=pool.limits, device="cuda:0") as seeing:
            found = describe_gpu(seeing)
    except (InfrastructureError, MissingPrerequisite) as error:
        return Capability(name=name, on=False, why=str(error))
    if "error" in found:
        return Capability(name=name, on=False, why=f"{found['error']}; {found['fix']}")
    said = (found["chip"], found["capability"], f"CUDA {found['cuda']}", in_use(found))
    return Capability(name=name, on=True, why=", ".join(filter(None, said)))


def _machine(target: Target) -> Iterator[Capability]:
    mark, best = target.fingerprint, target.ceilings
    gib = mark.memory_bytes / (1 << 30)
    yield Capability(name="chip", on=True, why=f"{mark.chip}, {mark.threads} threads, {gib:.0f} GiB")
    copy, cached, peaks = best.copy_bytes_s, best.cached_copy_bytes_s, best.products
    where = (("from memory", copy), ("in cache", cached))
    copies = ", ".join(f"{rate / 1e9:.1f} GB/s {what}" for what, rate in where if rate is not None)
    without = "not measured, as too little memory is free; times are not compared with it"
    yield Capability(
        name="copy bandwidth",
        on=copy is not None,
        why=", ".join(filter(None, [copies, "" if copy else without])),
    )
    products = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in peaks.items())
    yield Capability(name="matmul", on=bool(peaks), why=products or without)
    if best.busy:
        why = f"threads waited for a CPU {best.disturbed:.0%} of the time, so they may be too low"
        yield Capability(
            name="ceilings undisturbed", on=False, why=f"{why}; run `kernelwright doctor` on a quiet machine"
        )
    if target.device == "cpu":
        yield _cold_caches()


def _cold_caches() -> Capability:
    """Return the capability to evict inputs from the caches before they are timed."""
    caches, evict = last_level_caches(), eviction.of_machine()
    size_mib = sum(cache.size_bytes for cache in caches) >> 20
    many = f" in {len(caches)}" if len(caches) > 1 else ""
    if evict.complete:
        return Capability(
            name="cold caches", on=True, why=f"a last-level cache of {size_mib} MiB{many} is evicted"
        )
    why = (
        f"too little memory is free to evict a last-level cache of {size_mib} MiB{many}: calls are timed hot"
    )
    return Capability(name="cold caches", on=False, why=why)
