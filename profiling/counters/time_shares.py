"""Shares of the time of a candidate's calls: its kernels, torch, the system, and waiting for threads.

perf takes samples from outside; addresses are looked up in the candidate's libraries inside its builder's
sandbox.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import ask_builder, validated
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.profiling.built import serve_libraries
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.counters import perf
from kernelwright.profiling.counters.per_call import watched
from kernelwright.profiling.counters.sampling import SYSTEM, PerfSampling, SourceLine
from kernelwright.profiling.records import Metric
from kernelwright.profiling.rung import Reading, Subject
from kernelwright.profiling.static.symbols import Symbol, symbols
from kernelwright.profiling.static.x86 import kernel_of

_FEWEST = 50  # samples that say something
_MOST_KERNELS = 64
_TIMEOUT_S = 90.0
_RUNTIMES = ("libgomp", "libomp", "libiomp")
_TORCH = ("/torch/lib/", "/functorch/", "libtorch")
_WHOLE = {"torch": "time_in_torch", "system": "time_in_system", "waiting": "time_waiting"}


class _Library(TypedDict):
    path: str  # its last two parts: those of the cache's entries differ by the first
    symbols: list[Symbol]


_LIBRARIES = TypeAdapter(list[_Library], config=ConfigDict(strict=False))


class TimeShares:
    """Shares of the CPU time by kernel and by library, from perf record."""

    name = "samples"

    def available(self) -> str:
        perf.granted()
        return "where the time goes, by perf record"

    def read(self, subject: Subject) -> Reading:
        if not subject.on_cpu:
            raise Unavailable("only for candidates on a CPU")
        perf.granted()
        calls, samples = watched(subject, PerfSampling)
        count = sum(samples.values())
        if count < _FEWEST:
            raise Unavailable(f"only {count} samples were taken, too few to report")
        answer = ask_builder(subject.evaluator.sessions.pool, __name__, subject.candidate.sha256, _TIMEOUT_S)
        libraries = validated(_LIBRARIES, answer.get("libraries"), "its libraries")
        known = {library["path"]: library["symbols"] for library in libraries}
        how = f"{count} samples of {calls} calls of a process that was warmed up, by perf record"
        return Reading(tuple(metrics(samples, known)), how)


def metrics(samples: Mapping[SourceLine, int], libraries: Mapping[str, Sequence[Symbol]]) -> Iterator[Metric]:
    """Yield shares of the CPU time.

    `libraries`: the candidate's, keyed by the last two parts of their paths.
    """
    found: dict[tuple[str, str], int] = {}
    for place, count in samples.items():
        key = _whose(place, libraries)
        found[key] = found.get(key, 0) + count
    total = sum(samples.values())
    kernels = sorted(
        ((count, kernel) for (of, kernel), count in found.items() if of == "kernel"), reverse=True
    )
    for count, kernel in kernels[:_MOST_KERNELS]:
        yield metric("time_share", count / total, kernel)
    for of, name in _WHOLE.items():
        yield metric(name, found.get((of, ""), 0) / total)


def _whose(place: SourceLine, libraries: Mapping[str, Sequence[Symbol]]) -> tuple[str, str]:
    """Return the owner of a location, as (kind, kernel name)."""
    if place.path == SYSTEM:
        return "system", ""
    own = libraries.get("/".join(place.path.split("/")[-2:]))
    if own is not None:
        inside = (s for s in own if s.begin <= place.offset < s.begin + s.size)
        symbol = next(inside, None)
        return ("kernel", kernel_of(symbol.name)) if symbol is not None else ("elsewhere", "")
    file = place.path.rpartition("/")[2]
    if file.startswith(_RUNTIMES):
        return "waiting", ""
    generated = not place.path.startswith("/") or place.path.startswith("//")  # by oneDNN: in no file
    of_torch = generated or any(part in place.path for part in _TORCH)
    return ("torch", "") if of_torch else ("elsewhere", "")


def serve(channel: Channel) -> None:
    """Serve in the worker: answer "read" with the functions of the libraries in its build cache."""
    serve_libraries(channel, _read)


def _read(libraries: Sequence[Path]) -> dict[str, Any]:
    found = [
        {"path": "/".join(library.parts[-2:]), "symbols": [asdict(s) for s in symbols(library)]}
        for library in libraries
    ]
    return {"libraries": found}
