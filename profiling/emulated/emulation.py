"""Memory requests of warps in CUDA C++ kernels, counted while a call is emulated: no GPU needed.

Sectors of 32 bytes of global memory, and passes over the 32 banks of shared memory, of four blocks of each
launch, as Nsight Compute counts them on a GPU.
https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#memory-tables
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from kernelwright.kernelbench.errors import TaskError, Unavailable
from kernelwright.kernelbench.evaluator import Sessions
from kernelwright.kernelbench.evaluator.processes.answers import (
    Count,
    failed_load,
    kernel_name,
    plain,
    refuse_problem,
    validated,
)
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.toolchain import make_wanted_header
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.machine import compiler
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.kernelbench.sources.smaller import changed, smaller
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Metric, Remark
from kernelwright.profiling.rung import Reading, Subject

_MOST_PLACES, _MOST_KERNELS, _MOST_LINES = 1024, 64, 5  # in all; of a call; of a kernel, that are shown
_LONGEST_CODE = 100
_WASTED = 1.3  # times what would do, from which a line is named
_COUNTS = ("requests", "pieces", "least")
_Positive = Annotated[int, Field(ge=1, lt=1 << 48)]
_PASSES = "emulated_bank_passes"
_WORDS = {"read": "load", "write": "store", "atomic": "atomic"}


@dataclass(frozen=True)
class Place:
    """Requests of warps at one source line, over all launches of a call; see `findings.MemoryTraffic`."""

    kernel: str
    line: Count
    space: Literal["global", "shared"]
    access: Literal["read", "write", "atomic"]
    requests: _Positive
    pieces: _Positive
    least: _Positive
    code: str


_PLACES = TypeAdapter(list[Place], config=ConfigDict(allow_inf_nan=False))


class Emulation:
    """Uncoalesced accesses and bank conflicts of CUDA C++ kernels, by source line."""

    name = "emulation"

    def available(self) -> str:
        found = compiler()
        if found is None or shutil.which("objdump") is None:
            raise Unavailable("install g++ and binutils (Debian, Ubuntu: apt-get install g++ binutils)")
        return f"sectors and bank conflicts of CUDA C++ kernels, which {found} builds for the CPU"

    def read(self, subject: Subject) -> Reading:
        language, sessions = subject.candidate.language, subject.evaluator.sessions
        if language != "cuda":
            raise Unavailable(f"only for CUDA C++; the candidate's language is {language}")
        if subject.device != "cpu":
            if subject.evaluator.emulating is None:
                raise Unavailable("ncu counts these on a GPU; use --target sm_90 to emulate")
            sessions = subject.evaluator.emulating
        self.available()
        with sessions.computing():
            session, sizes = _session(sessions, subject.task)
            found = _ask(session, subject.candidate)
        how = f"one call in emulation at {sizes}, four blocks of each launch"
        return Reading(tuple(_metrics(found)), how, tuple(_remarks(found)))


def _session(sessions: Sessions, task: Task) -> tuple[TaskSession, str]:
    """Return a session at the first smaller size the reference accepts, and that size in words.

    Raises TaskError.
    """
    for alternatives in smaller(task):
        for other in alternatives:
            try:
                return sessions.open(other), changed(task, other)
            except TaskError:  # the reference is not defined at such sizes
                continue
    return sessions.open(task), "the task's own sizes"


def _ask(session: TaskSession, candidate: Candidate) -> list[Place]:
    """Count the requests in a builder that has loaded the candidate; retry once if a header was missing."""
    # In the sandbox they could not be read.
    session.pool.import_first([__name__, "kernelwright.kernelbench.emulate.warm"])
    try:
        answer = _answer(session, candidate)
        if make_wanted_header(session.pool, session.pool.builds_of(candidate.sha256)):
            answer = _answer(session, candidate)
    except (WorkerDied, WorkerTimeout) as error:
        raise Unavailable(f"emulating the kernels failed: {error}") from None
    refuse_problem(answer)
    return validated(_PLACES, answer.get("places"), "its kernels")


def _answer(session: TaskSession, candidate: Candidate) -> dict[str, Any]:
    """Load and run the candidate once. Raises WorkerDied or WorkerTimeout."""
    limit_s = session.limits.build_s
    worker, loaded = session.load(
        "builder",
        candidate.source,
        "candidate",
        "ModelNew",
        limit_s,
        candidate.sha256,
        entry=f"{__name__}:serve",
    )
    with worker:
        if not loaded.get("ok"):
            return {"problem": failed_load(loaded)}
        session.give_input(worker)
        worker.thaw()
        return worker.ask({"do": "count"}, limit_s)


def _metrics(found: Sequence[Place]) -> Iterator[Metric]:
    for kernel in _kernels(found):
        own = [place for place in found if place.kernel == kernel]
        for name in dict.fromkeys(map(_metric_of, own)):
            places = [place for place in own if _metric_of(place) == name]
            over = "least" if name == _PASSES else "requests"
            yield metric(name, _sum(places, "pieces") / _sum(places, over), kernel)
        if places := [place for place in own if place.space == "global"]:
            yield metric("emulated_sector_use", _sum(places, "least") / _sum(places, "pieces"), kernel)


def _sum(places: Sequence[Place], name: str) -> int:
    return sum(getattr(place, name) for place in places)


def _remarks(found: Sequence[Place]) -> Iterator[Remark]:
    """Yield remarks on the most wasteful lines, the worst first."""
    for kernel in _kernels(found):
        wasteful = [p for p in found if p.kernel == kernel and p.line and p.pieces > _WASTED * p.least]
        for place in sorted(wasteful, key=lambda p: p.least - p.pieces)[:_MOST_LINES]:
            what = "sectors" if place.space == "global" else "passes over the banks"
            takes, least = place.pieces / place.requests, place.least / place.requests
            yield Remark(
                kernel=kernel_name(kernel),
                line=place.line,
                code=plain(place.code, _LONGEST_CODE),
                text=f"a {_WORDS[place.access]} takes {takes:.3g} {what}, {least:.3g} would suffice",
                provenance="emulated",
                metric=_metric_of(place),
            )


def _metric_of(place: Place) -> str:
    if place.space == "shared":
        return _PASSES
    return "emulated_load_sectors" if place.access == "read" else "emulated_store_sectors"


def _kernels(found: Sequence[Place]) -> list[str]:
    return list(dict.fromkeys(place.kernel for place in found))[:_MOST_KERNELS]


def serve(channel: Channel) -> None:
    """Serve in the worker: "load" as any builder does, then "count"."""
    import torch

    from kernelwright.kernelbench.evaluator.processes.worker import Runner

    torch.set_grad_enabled(False)
    runner = Runner()
    while True:
        message, fds = channel.receive_json()
        if message["do"] == "load":
            channel.send_json(runner.load(message, fds))
        else:
            channel.send_json(_counted(runner))


def _counted(runner: Any) -> dict[str, Any]:
    from kernelwright.kernelbench.emulate.findings import KernelFault
    from kernelwright.kernelbench.emulate.launching import traffic

    try:
        with traffic() as told, runner.as_on_gpu():
            runner.model(*runner.slots[0])
    except KernelFault as fault:
        return {"problem": f"its kernels are faulty (see `evaluate`): {fault.findings[0].says}"}
    except Exception as error:  # noqa: BLE001 - whatever the candidate raises
        return {"problem": f"{type(error).__name__}: {error}"}
    if not told:
        return {"problem": "it launches no kernel built by compile_cuda or load_inline that touches memory"}
    places: dict[tuple[object, ...], dict[str, Any]] = {}  # of all launches of a kernel
    for each in map(asdict, told):
        known = places.setdefault(
            (each["kernel"], each["line"], each["space"], each["access"]), each | dict.fromkeys(_COUNTS, 0)
        )
        known.update({name: known[name] + each[name] for name in _COUNTS})
    return {"places": list(places.values())[:_MOST_PLACES]}
