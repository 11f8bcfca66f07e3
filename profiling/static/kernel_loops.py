"""Readings of a candidate's libraries inside its builder's sandbox, since it may have put anything there."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import ask_builder, validated
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.profiling.built import serve_libraries
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Metric
from kernelwright.profiling.rung import Reading, Subject
from kernelwright.profiling.static.objdump import MISSING
from kernelwright.profiling.static.x86 import LoopMix, functions, mixes

_MIXES = TypeAdapter(list[LoopMix], config=ConfigDict(allow_inf_nan=False))
_MOST_KERNELS = 64
_TIMEOUT_S = 90.0
_COUNTED = ("divisions", "gathers", "spills", "streaming_stores", "prefetches")
_SHARES = ("packed_share", "zmm_share", "ymm_share", "fma_share")


class Loops:
    """Instructions in the loops of C++ kernels: objdump's disassembly of the candidate's libraries."""

    name = "loops"

    def available(self) -> str:
        found = shutil.which("objdump")
        if found is None:
            raise Unavailable(MISSING)
        return f"instructions in the loops of C++ kernels, by {found}"

    def read(self, subject: Subject) -> Reading:
        if not subject.on_cpu:
            raise Unavailable("only for candidates on a CPU")
        metrics = static_metrics(subject.evaluator.sessions.pool, subject.candidate.sha256)
        return Reading(metrics, "the loops of its kernels, by objdump")


def static_metrics(pool: WorkerPool, candidate: str) -> tuple[Metric, ...]:
    """Return the metrics of the loops of a built candidate's kernels. `candidate`: its sha256.

    Raises Unavailable if objdump is missing or cannot read the libraries.
    """
    answer = ask_builder(pool, __name__, candidate, _TIMEOUT_S)
    found = validated(_MIXES, answer.get("mixes"), "its kernels")
    return tuple(each for mix in found[:_MOST_KERNELS] for each in _metrics(mix))


def _metrics(mix: LoopMix) -> Iterator[Metric]:
    kernel = mix.kernel
    yield metric("loops", mix.loops, kernel)
    yield metric("vector_bits", mix.vector_bits, kernel)
    for name in _SHARES:
        share = getattr(mix, name)
        if share is not None:
            yield metric(name, share, kernel)
    for name in _COUNTED:
        yield metric(name, getattr(mix, name), kernel)
    yield metric("calls_in_loops", len(mix.calls), kernel)


def serve(channel: Channel) -> None:
    """Serve in the worker: answer "read" with the mixes of the libraries in its build cache."""
    serve_libraries(channel, _read)


def _read(libraries: Sequence[Path]) -> dict[str, Any]:
    if not libraries:
        raise Unavailable("the candidate has built no library")
    return {"mixes": [asdict(mix) for library in libraries for mix in mixes(functions(library))]}
