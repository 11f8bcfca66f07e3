"""GPU kernels of a candidate read from their machine code for a chip, on machines without that chip."""

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence

from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.chips.notes import Builder, Launched
from kernelwright.kernelbench.chips.occupancy import occupancy, warps_of
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import kernel_name
from kernelwright.kernelbench.without_gpu.building import built
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Metric
from kernelwright.profiling.rung import Reading, Subject


class Cubins:
    """Resources and instructions of Triton's and CuPy's kernels on a named chip."""

    name = "cubins"

    def available(self) -> str:
        builders = " and ".join(_builders().values())
        return f"machine code of {builders} for any chip, by {sass.tool('nvdisasm')}"

    def read(self, subject: Subject) -> Reading:
        if not subject.chip:
            raise Unavailable("GPU kernels are only read for a named chip: use --target sm_90")
        self.available()
        found, problems, _ = built(subject.evaluator.sessions, subject.task, subject.candidate, subject.chip)
        if not found:
            raise Unavailable("; ".join(problems) or "it launches no kernel of Triton, CuPy or compile_cuda")
        versions = _builders()
        used = dict.fromkeys(versions[kernel.builder] for kernel in found)
        how = f"built for {subject.chip} by {' and '.join(used)}; nothing was run"
        metrics = tuple(
            each
            for label, kernel in zip(_labels(found), found, strict=True)
            for each in metrics_of(label, kernel, subject.chip)
        )
        return Reading(metrics, "; ".join([how, *problems]))


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


def metrics_of(label: str, kernel: Launched, chip: str) -> Iterator[Metric]:
    warps = warps_of(kernel.threads)
    held = occupancy(chip, kernel.threads, kernel.registers, kernel.shared_bytes)
    blocks = held.blocks_by
    x, y, z = kernel.grid
    values: dict[str, float | None] = {
        "built_launches": kernel.launches,
        "blocks": x * y * z,
        "threads": kernel.threads,
        "configurations": kernel.configurations or None,
        "built_registers": kernel.registers,
        "shared_bytes": kernel.shared_bytes,
        "stack_bytes": kernel.stack_bytes,
        "occupancy": held.share,
        "warps_by_registers": blocks["registers"] * warps,
        "warps_by_shared_memory": blocks["shared memory"] * warps,
        "warps_by_threads": min(blocks["threads"], blocks["blocks"]) * warps,
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
    for name, value in values.items():
        if value is not None:
            yield metric(name, value, label)


def _labels(kernels: Sequence[Launched]) -> list[str]:
    """Return the kernels' names, numbered if several share one."""
    names = [kernel_name(kernel.name) for kernel in kernels]
    before = [names[:at].count(name) for at, name in enumerate(names)]
    return [kernel_name(name, f".{n + 1}" if n else "") for name, n in zip(names, before, strict=True)]
