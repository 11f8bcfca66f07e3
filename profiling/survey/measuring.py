"""A machine's survey: measured step by step in a worker, stored in the cache folder."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from kernelwright.kernelbench import machine_cache
from kernelwright.kernelbench.cpu_caches import DEVICES, own_caches
from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.jit import compiler
from kernelwright.kernelbench.machine import available_bytes
from kernelwright.kernelbench.records import Record, Target
from kernelwright.profiling.survey.records import KINDS, Bandwidth, Cache, Overhead, Peak, Survey

_ROUNDS = 3  # of all steps; the best counts, for what else runs on a machine often does so for seconds
_ENOUGH_S = 25.0  # after which no more is measured than each step once
_STEP_S = 60.0  # at most
_ENTRY = "kernelwright.profiling.survey.worker:serve"
_SMALLEST_CPU_BYTES = 8 << 10  # working set for each thread
_SMALLEST_GPU_BYTES = 1 << 20  # below it, a kernel's time is its launch
_BEYOND = 4  # times the last cache, the largest working set
_MOST_SHARE, _MOST_BYTES = 0.25, 4 << 30  # of the memory that is to be had; a worker may take twice as much
# What the worker knows by these names (`cpu.py`, `gpu.py`).
_PRECISIONS = {"cpu": ("fp32", "bf16", "fp16", "int8"), "cuda": ("fp32", "tf32", "bf16", "fp16", "int8")}
_OVERHEADS = {
    "cpu": (
        "call of a compiled function",
        "torch operator, one element",
        "parallel region",
        "barrier",
        "atomic add",
        "contended atomic add",
    ),
    "cuda": (
        "torch operator, enqueued",
        "torch operator, awaited",
        "small kernel in a CUDA graph",
        "pair of events",
    ),
}


class Step(Record):
    """One measurement."""

    do: Literal["bandwidth", "matmul", "vector units", "overhead"]
    name: str  # the kind of loop, the precision, or what it is that costs
    working_set_bytes: int = 0
    streaming: bool = False


class StepResult(Record):
    """A worker's result of one step."""

    value: float | None = None  # None: there is no such thing here, or it could not be told
    path: str = ""

    def better(self, step: Step, other: "StepResult") -> bool:
        if self.value is None or other.value is None:
            return other.value is None
        return self.value < other.value if step.do == "overhead" else self.value > other.value


def file_of(cache: Path, target: Target) -> Path:
    return machine_cache.file_for(cache, "surveys", target.fingerprint)


def stored(cache: Path, target: Target) -> Survey | None:
    """Return the stored survey, if any. Raises StorageError if it is damaged."""
    return machine_cache.read(file_of(cache, target), Survey)


def measure(pool: WorkerPool, target: Target, advance: Callable[[float], None] = lambda _: None) -> Survey:
    """Measure the machine, which takes half a minute, and store the survey.

    `advance` is called with the share that is done. Raises MissingPrerequisite without a C++ compiler,
    InfrastructureError, StorageError.
    """
    if target.device == "cpu":
        compiler.command()
    load = os.getloadavg()[0]
    caches = _caches(target)
    wanted = list(steps(target, caches))
    best: dict[Step, StepResult] = {}
    try:
        with (
            pool.timing_lock.exclusive(),
            pool.start("baseline", _ENTRY) as worker,
        ):
            worker.ask({"do": "start", "device": pool.worker_device}, _STEP_S)
            started = time.monotonic()
            for number, step in enumerate(_ROUNDS * wanted):
                if number >= len(wanted) and time.monotonic() - started > _ENOUGH_S:
                    break
                found = StepResult.model_validate(worker.ask(step.model_dump(), _STEP_S))
                if step not in best or found.better(step, best[step]):
                    best[step] = found
                advance((number + 1) / (_ROUNDS * len(wanted)))
    except (WorkerDied, WorkerTimeout) as error:
        raise InfrastructureError(
            f"the machine could not be measured: {error}", "free some memory and try again"
        ) from None
    advance(1.0)
    survey = _survey(target, load, caches, best)
    machine_cache.write(file_of(pool.cache, target), survey)
    return survey


def steps(target: Target, caches: tuple[Cache, ...]) -> Iterator[Step]:
    family = target.device.partition(":")[0]
    last = caches[-1].bytes
    for size in _sizes(target, last):
        for kind in KINDS:
            yield Step(do="bandwidth", name=kind, working_set_bytes=size)
            if family == "cpu" and kind != "read" and size > last:
                yield Step(do="bandwidth", name=kind, working_set_bytes=size, streaming=True)
    for precision in _PRECISIONS[family]:
        yield Step(do="matmul", name=precision)
        if family == "cpu":
            yield Step(do="vector units", name=precision)
    for name in _OVERHEADS[family]:
        yield Step(do="overhead", name=name)


def _sizes(target: Target, last: int) -> Iterator[int]:
    """Yield powers of two, from what fits in the first cache to what fits in none."""
    on_cpu = target.device == "cpu"
    smallest = _SMALLEST_CPU_BYTES * target.fingerprint.threads if on_cpu else _SMALLEST_GPU_BYTES
    there = available_bytes() if on_cpu else target.fingerprint.memory_bytes
    size = 1 << (smallest - 1).bit_length()
    while size <= min(_BEYOND * last, _MOST_SHARE * there, _MOST_BYTES):
        yield size
        size *= 2


def _survey(target: Target, load: float, caches: tuple[Cache, ...], best: dict[Step, StepResult]) -> Survey:
    bandwidths: dict[tuple[str, int], Bandwidth] = {}
    peaks, overheads = [], []
    for step, found in best.items():
        if found.value is None:
            continue
        if step.do == "bandwidth":
            one = Bandwidth.model_validate(
                {"kind": step.name, "bytes_s": found.value}
                | step.model_dump(include={"working_set_bytes", "streaming"})
            )
            place = (one.kind, one.working_set_bytes)
            bandwidths[place] = max(one, bandwidths.get(place, one), key=lambda each: each.bytes_s)
        elif step.do == "overhead":
            overheads.append(Overhead(name=step.name, seconds=found.value))
        else:
            peaks.append(Peak(precision=step.name, means=step.do, flops_s=found.value, path=found.path))
    return Survey(
        device=target.device,
        fingerprint=target.fingerprint,
        load=load,
        caches=caches,
        bandwidths=tuple(bandwidths.values()),
        peaks=tuple(peaks),
        overheads=tuple(overheads),
    )


def _caches(target: Target) -> tuple[Cache, ...]:
    found = caches_together() if target.device == "cpu" else ()
    return found or (Cache(name="last cache", bytes=target.fingerprint.last_level_cache_bytes),)


def caches_together(devices: Path = DEVICES) -> tuple[Cache, ...]:
    """Return the caches of all CPUs this process may use, hyperthreads counted once, the nearest first."""
    found: dict[int, int] = {}
    for cache in own_caches(devices):
        found[cache.level] = found.get(cache.level, 0) + cache.size_bytes
    return tuple(Cache(name=f"L{level}", bytes=size) for level, size in found.items())
