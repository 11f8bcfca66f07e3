"""Simulated counters of one call: instructions, reads, writes and cache misses of each C++ kernel.

The call is recorded, and its kernels are run again under valgrind's callgrind, which simulates caches as
cachegrind does and counts each kernel with its callees: all in the builder's sandbox.
https://valgrind.org/docs/manual/cl-manual.html
"""

import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import failed_load, refuse_problem, validated
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Candidate
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Metric
from kernelwright.profiling.rung import Reading, Subject
from kernelwright.profiling.simulated import caches
from kernelwright.profiling.simulated.callgrind import Costs

_COSTS = TypeAdapter(list[Costs], config=ConfigDict(allow_inf_nan=False))
_MOST_KERNELS = 64
_LIMIT_S, _AROUND_S = 300.0, 200.0  # for valgrind; for two calls and for building


class Simulation:
    """Instructions and cache misses of C++ kernels, by valgrind."""

    name = "simulation"

    def available(self) -> str:
        if platform.machine() != "x86_64":
            raise Unavailable(f"only on x86-64; this machine is {platform.machine()}")
        found = shutil.which("valgrind")
        if found is None:
            raise Unavailable("install valgrind (Debian, Ubuntu: apt-get install valgrind)")
        caches.of_machine()
        return f"`profile --simulate`: instructions and cache misses of C++ kernels, by {found}"

    def read(self, subject: Subject) -> Reading:
        if not subject.on_cpu:
            raise Unavailable("only for candidates on a CPU")
        self.available()
        simulated = caches.of_machine()
        with subject.evaluator.sessions.computing():
            found = _ask(subject.evaluator.sessions.open(subject.task), subject.candidate, simulated)
        how = (
            "one call under valgrind, starting with empty caches: "
            f"L1 {simulated.data}, last level {simulated.last}, one thread, kernels built for AVX2; "
            "no prefetching, and streaming stores count as ordinary ones"
        )
        return Reading(tuple(_metrics(found[:_MOST_KERNELS], simulated.last.line_bytes)), how)


def _ask(session: TaskSession, candidate: Candidate, simulated: caches.Caches) -> list[Costs]:
    # In the sandbox they could not be read; and torch, which they import, is not for the referee.
    session.pool.import_first(
        [__name__, "kernelwright.profiling.simulated.recording", "kernelwright.profiling.simulated.replay"]
    )
    try:
        worker, loaded = session.load(
            "builder",
            candidate.source,
            "candidate",
            "ModelNew",
            session.limits.build_s,
            candidate.sha256,
            entry=f"{__name__}:serve",
        )
        with worker:
            if not loaded.get("ok"):
                raise Unavailable(failed_load(loaded))
            session.give_input(worker)
            worker.thaw()
            driver = Path(__file__).with_name("driver.cpp").read_text()
            message = {"do": "simulate", "caches": simulated.words, "driver": driver, "limit_s": _LIMIT_S}
            answer = worker.ask(message, _LIMIT_S + _AROUND_S)
    except (WorkerDied, WorkerTimeout) as error:
        raise Unavailable(f"simulating the kernels failed: {error}") from None
    refuse_problem(answer)
    return validated(_COSTS, answer.get("costs"), "its kernels")


def _metrics(found: Sequence[Costs], line_bytes: int) -> Iterator[Metric]:
    yield metric("simulated_fetched", sum(costs.last_misses for costs in found) * line_bytes)
    for costs in found:
        kernel = costs.kernel
        yield metric("simulated_calls", costs.calls, kernel)
        yield metric("simulated_instructions", costs.instructions, kernel)
        yield metric("simulated_reads", costs.reads, kernel)
        yield metric("simulated_writes", costs.writes, kernel)
        yield metric("simulated_l1_misses", costs.l1_misses, kernel)
        yield metric("simulated_last_misses", costs.last_misses, kernel)
        yield metric("simulated_fetched", costs.last_misses * line_bytes, kernel)


def serve(channel: Channel) -> None:
    """Serve in the worker: "load" as any builder does, then "simulate"."""
    import torch

    from kernelwright.kernelbench.evaluator.processes.worker import Runner
    from kernelwright.profiling.simulated.recording import CallRecorder

    torch.set_grad_enabled(False)
    runner = Runner()
    with tempfile.TemporaryDirectory() as name:
        recorder = CallRecorder(Path(name))
        recorder.watch()
        while True:
            message, fds = channel.receive_json()
            if message["do"] == "load":
                channel.send_json(runner.load(message, fds))
            else:
                channel.send_json(_simulated(runner, recorder, message, Path(name)))


def _simulated(runner: Any, recorder: Any, message: dict[str, Any], folder: Path) -> dict[str, Any]:
    from kernelwright.profiling.simulated.recording import TooMuch
    from kernelwright.profiling.simulated.replay import replay

    try:
        runner.model(*runner.slots[0])  # what only the first call does is done
        with recorder.recording():
            runner.model(*runner.slots[0])
        if not recorder.calls:
            return {"problem": "it calls no kernel built by compile_cpp"}
        found = replay(recorder.calls, message["driver"], message["caches"], folder, message["limit_s"])
    except (Unavailable, TooMuch) as error:
        return {"problem": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever the candidate raises
        return {"problem": f"{type(error).__name__}: {error}"}
    return {"costs": [asdict(each) for each in found]}
