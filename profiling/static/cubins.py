"""GPU kernels of a candidate, read from their machine code.

On a GPU that is what the candidate has built there, with the launches that a trace recorded. For a chip that
is not here, the kernels are built for it.
"""

import contextlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.chips.notes import Builder, Launched
from kernelwright.kernelbench.chips.occupancy import occupancy, warps_of
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import kernel_name
from kernelwright.kernelbench.without_gpu.building import NO_KERNEL, built
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.gpu.kernels import declared
from kernelwright.profiling.records import Metric, Profile
from kernelwright.profiling.rung import Reading, Subject
from kernelwright.profiling.static.compiled import CompiledKernel, compiled
from kernelwright.profiling.static.predictions import predictions


class Cubins:
    """Resources, occupancy and instructions of GPU kernels."""

    name = "cubins"

    def available(self) -> str:
        builders = " and ".join(_builders().values())
        return f"machine code of a GPU's kernels, and of {builders} for any chip, by {sass.tool('nvdisasm')}"

    def read(self, subject: Subject) -> Reading:
        if subject.device != "cpu":
            return _of_device(subject)
        if not subject.chip:
            raise Unavailable("GPU kernels are read on a GPU, or for a named chip: use --target sm_90")
        self.available()
        call = built(subject.evaluator.sessions, subject.task, subject.candidate, subject.chip)
        found, problems = call.kernels, call.problems
        if not found:
            raise Unavailable("; ".join(problems) or NO_KERNEL)
        versions = _builders()
        used = dict.fromkeys(versions.get(kernel.builder, kernel.builder) for kernel in found)
        how = f"built for {subject.chip} by {' and '.join(used)}; nothing was run"
        labels = labels_of(found)
        metrics = tuple(
            each
            for label, kernel in zip(labels, found, strict=True)
            for each in metrics_of(label, kernel, subject.chip)
        )
        work = subject.evaluator.work(subject.task)
        foreseen, said = predictions(call, labels, subject.chip, work.moved_bytes)
        return Reading((*metrics, *foreseen), "; ".join([how, *said, *problems]))


def _builders() -> dict[Builder, str]:
    """Return the installed kernel builders with their versions. Raises Unavailable if there are none."""
    found: dict[Builder, str] = {}
    if importlib.util.find_spec("triton") is not None:
        found["Triton"] = f"Triton {importlib.metadata.version('triton')}"
    with contextlib.suppress(Unavailable):
        found["NVRTC"] = f"NVRTC {nvrtc.version()}"
    if not found:
        raise Unavailable("neither Triton nor NVRTC is installed; pip install 'kernelwright[cuda]'")
    return found


def _of_device(subject: Subject) -> Reading:
    """Read the kernels that were launched, as the trace has them; without one, those the file declares."""
    traced = _traced(subject.known)
    names = traced.keys() or declared(subject.candidate.source)
    sass.tool("nvdisasm")
    found = compiled(subject.evaluator.sessions.pool, subject.candidate.sha256, names)
    metrics: list[Metric] = []
    for name in names:
        builds = [kernel for kernel in found if kernel.name == name]
        launch = traced.get(name, {})
        kernel = _launched_one(builds, launch)
        if kernel is not None:
            metrics += _of_code(name, kernel)
            if launch:
                as_traced = _Launch.traced(launch, kernel, len(builds))
                with contextlib.suppress(ValueError):  # of a newer chip, or a trace of what cannot be
                    metrics += list(_of_launch(name, as_traced, kernel.registers, subject.architecture))
    if not metrics:
        raise Unavailable("its build cache holds no machine code of the kernels that it launches")
    how = "machine code in its build cache, by nvdisasm"
    return Reading(tuple(metrics), how if traced else f"{how}; launches are unknown without a trace")


def _traced(known: Profile | None) -> dict[str, dict[str, float]]:
    """Return the metrics of a trace by kernel; empty without one."""
    found: dict[str, dict[str, float]] = {}
    for each in known.metrics if known is not None else ():
        if each.provenance == "cupti" and each.kernel:
            found.setdefault(each.kernel, {})[each.name] = each.value
    return {name: launch for name, launch in found.items() if launch.get("block_threads")}


def _launched_one(builds: Sequence[CompiledKernel], launch: Mapping[str, float]) -> CompiledKernel | None:
    """Return the build that was launched: an autotuner leaves several, told apart by their registers."""
    alike = [kernel for kernel in builds if kernel.registers == launch.get("registers")]
    return alike[0] if alike else builds[0] if len(builds) == 1 else None


def metrics_of(label: str, kernel: Launched, chip: str) -> Iterator[Metric]:
    values = {
        "built_launches": kernel.launches,
        "blocks": math.prod(kernel.grid) or None,
        "threads": kernel.threads,
    }
    yield from _known(label, values)
    launch = _Launch(kernel.threads, kernel.shared_bytes, kernel.configurations)
    yield from _of_launch(label, launch, kernel.registers, chip)
    yield from _of_code(label, kernel)


@dataclass(frozen=True)
class _Launch:
    """Launch of a kernel, as far as its occupancy depends on it."""

    threads: int  # of a block
    shared_bytes: int  # of a block, static and dynamic
    configurations: int  # the builds that there are of it; 0 for one alone

    @classmethod
    def traced(cls, launch: Mapping[str, float], kernel: CompiledKernel, builds: int) -> "_Launch":
        return cls(
            threads=int(launch["block_threads"]),
            shared_bytes=int(launch.get("shared_memory", kernel.shared_bytes)),
            configurations=builds if builds > 1 else 0,
        )


def _of_launch(label: str, launch: _Launch, registers: int, chip: str) -> Iterator[Metric]:
    """Yield metrics of a launch. Raises ValueError for an unknown chip or impossible blocks."""
    warps = warps_of(launch.threads)
    held = occupancy(chip, launch.threads, registers, launch.shared_bytes)
    blocks = held.blocks_by
    values: dict[str, float | None] = {
        "configurations": launch.configurations or None,
        "shared_bytes": launch.shared_bytes,
        "occupancy": held.share,
        "warps_by_registers": blocks["registers"] * warps,
        "warps_by_shared_memory": blocks["shared memory"] * warps,
        "warps_by_threads": min(blocks["threads"], blocks["blocks"]) * warps,
    }
    yield from _known(label, values)


def _of_code(label: str, kernel: Launched | CompiledKernel) -> Iterator[Metric]:
    values: dict[str, float | None] = {
        "built_registers": kernel.registers,
        "stack_bytes": kernel.stack_bytes,
        "built_instructions": kernel.whole.instructions,
        "accesses": kernel.whole.loads + kernel.whole.stores + kernel.whole.asynchronous,
        "access_bits": kernel.whole.access_bits,
        "local_accesses": kernel.whole.spills,
        "inner_loops": kernel.loops,
        "loop_instructions": kernel.mix.instructions,
        "tensor_products": kernel.mix.tensor,
        "warp_products": kernel.mix.warp_products or None,
        "group_products": kernel.mix.group_products or None,
        "block_products": kernel.mix.block_products or None,
        "fp32_instructions": kernel.mix.fp32,
        "special_functions": kernel.mix.special,
        "global_loads": kernel.mix.loads,
        "global_stores": kernel.mix.stores,
        "copies": kernel.mix.asynchronous,
        "loop_access_bits": kernel.mix.access_bits,
        "shared_accesses": kernel.mix.shared,
        "loop_local_accesses": kernel.mix.spills,
        "barriers": kernel.mix.barriers,
        "atomics": kernel.mix.atomics,
        "stall_cycles": kernel.mix.stall_cycles,
    }
    yield from _known(label, values)


def _known(label: str, values: Mapping[str, float | None]) -> Iterator[Metric]:
    for name, value in values.items():
        if value is not None:
            yield metric(name, value, label)


def labels_of(kernels: Sequence[Launched]) -> list[str]:
    """Return the kernels' names, numbered if several share one."""
    names = [kernel_name(kernel.name) for kernel in kernels]
    before = [names[:at].count(name) for at, name in enumerate(names)]
    return [kernel_name(name, f".{n + 1}" if n else "") for name, n in zip(names, before, strict=True)]
