"""GPU kernels of a candidate as their machine code for a chip shows them, on machines without that chip."""

import contextlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from kernelbench.chips import launches, nvrtc, sass
from kernelbench.chips.notes import Builder, Launched
from kernelbench.chips.occupancy import limits_of, occupancy, warps_of
from kernelbench.errors import Unavailable
from kernelbench.evaluator.answers import kernel_name, validated
from kernelbench.evaluator.process import WorkerDied, WorkerTimeout
from profiling.catalogue import metric
from profiling.records import Metric
from profiling.rung import Reading, Subject

_KERNELS = TypeAdapter(list[Launched], config=ConfigDict(allow_inf_nan=False))
_LONGEST_PROBLEM, _MOST_KERNELS = 300, 64


class Cubins:
    """Triton's and CuPy's kernels for a named chip: what they take of a multiprocessor, and consist of."""

    name = "cubins"

    def available(self) -> str:
        builders = " and ".join(_builders().values())
        return f"machine code of {builders} for any chip, by {sass.tool('nvdisasm')}"

    def read(self, subject: Subject) -> Reading:
        if not subject.chip:
            raise Unavailable("GPU kernels are built for a chip that is named: --target sm_90")
        self.available()
        found, problems = built(subject)
        if not found:
            raise Unavailable(
                "; ".join(problems) or "it launches no kernel that can be noted: Triton's, CuPy's"
            )
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
    """What builds kernels here, with versions. Raises Unavailable where nothing does."""
    found: dict[Builder, str] = {}
    if importlib.util.find_spec("triton") is not None:
        found["Triton"] = f"Triton {importlib.metadata.version('triton')}"
    with contextlib.suppress(Unavailable):
        found["NVRTC"] = f"NVRTC {nvrtc.version()}"
    if not found:
        raise Unavailable("neither Triton nor NVRTC is installed; pip install 'kernelwright[cuda]'")
    return found


def built(subject: Subject) -> tuple[list[Launched], list[str]]:
    """The kernels that a call of the candidate launches, and what went wrong.

    Raises Unavailable, TaskError.
    """
    evaluator = subject.evaluator
    with evaluator.computing():
        session = evaluator.session(subject.task)
        evaluator.pool.import_first([launches.__name__])  # behind the fence it could not be read
        limit_s = evaluator.limits.build_s
        sha256, source = subject.candidate.sha256, subject.candidate.source
        try:
            with evaluator.pool.start("builder", f"{launches.__name__}:serve", sha256) as worker:
                worker.ask({"do": "open", "capability": capability(subject.chip)}, limit_s)
                loaded = session.load_into(worker, source, "candidate", "ModelNew", limit_s)
                session.give_input(worker)
                worker.thaw()
                answer = worker.ask({"do": "read"}, limit_s)
        except (WorkerDied, WorkerTimeout) as error:
            raise Unavailable(f"building its kernels failed: {error}") from None
    problems = _texts(answer.get("problems"))
    if not loaded.get("ok"):
        problems.append(_text(f"it cannot be loaded: {loaded.get('error')}"))
    return validated(_KERNELS, answer.get("kernels"), "its kernels")[:_MOST_KERNELS], problems


def capability(chip: str) -> int:
    """90 of "sm_90". Raises ValueError where its limits are not known."""
    limits_of(chip)
    return int(re.sub(r"\D", "", chip))


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
    """Their names; of several of one name, with numbers."""
    names = [kernel_name(kernel.name) for kernel in kernels]
    before = [names[:at].count(name) for at, name in enumerate(names)]
    return [kernel_name(name, f".{n + 1}" if n else "") for name, n in zip(names, before, strict=True)]


def _texts(given: Any) -> list[str]:
    return [_text(str(each)) for each in given[:8]] if isinstance(given, list) else []


def _text(given: str) -> str:
    return "".join(c if c.isprintable() else " " for c in given)[:_LONGEST_PROBLEM]
