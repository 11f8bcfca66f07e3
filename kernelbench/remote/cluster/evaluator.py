"""The evaluator whose candidates are built, verified and timed in an actor; tasks are traced here."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError, UsageError
from kernelwright.kernelbench.evaluator import LocalEvaluator, Measurement, Referee
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.several_devices import SeveralDevices
from kernelwright.kernelbench.records import Candidate, Environment, Evaluation, Target, Task, Work
from kernelwright.kernelbench.remote.cluster.handle import SlotHandle, TryCounter
from kernelwright.kernelbench.remote.cluster.nodes import SlotPlace, places
from kernelwright.kernelbench.remote.cluster.slot import SlotInfo, StartSlot
from kernelwright.kernelbench.remote.machines import BEGIN_ANOTHER, difference
from kernelwright.kernelbench.version import kernelwright_version

MOST_SLOTS = 16  # evaluations that one actor may be handed at a time
START_S = 180.0  # that actors may take to start, their machine's first measurement included
_SAID_AFTER_S = 20.0
_AHEAD = 2  # evaluations handed to a slot beyond those it does at a time, so that it never waits
_KNOWN = 1000  # tasks whose slot is remembered
_log = logging.getLogger("kernelwright")
Say = Callable[[str], None]


class BuilderSlots:
    """Actors on nodes that are not timed: they build and check candidates before a timing slot does."""

    def __init__(self, handles: Sequence[SlotHandle]) -> None:
        self.handles = list(handles)
        self._busy = dict.fromkeys(handles, 0)
        self._lock = threading.Lock()

    def check(self, task: Task, candidate: Candidate) -> tuple[Evaluation | None, Any]:
        """Return the verdict on a candidate that is not worth timing, else a reference to its build.

        (None, None) where no builder answers; then the timing slot does it all. Raises TaskError.
        """
        with self._lock:
            working = [handle for handle in self.handles if not handle.lost]
            if not working:
                return None, None
            chosen = min(working, key=lambda handle: self._busy[handle])
            self._busy[chosen] += 1
        try:
            found, build = chosen.call_in_parts("check", 2, task, candidate)
        except InfrastructureError as error:
            _log.debug(f"a builder failed: {error.message}")
            return None, None
        finally:
            with self._lock:
                self._busy[chosen] -= 1
        return (None, build) if found.only_checked else (found, None)


class ClusterEvaluator(LocalEvaluator):
    """Evaluates candidates on one timing slot. `local` traces tasks here, on the CPU."""

    def __init__(
        self,
        slot: SlotHandle,
        info: SlotInfo,
        local: LocalEvaluator,
        builders: BuilderSlots,
        owned: Sequence[SlotHandle] = (),
    ) -> None:
        """`owned`: actors that end with it."""
        super().__init__(local.sessions)
        self._slot, self._info, self._local, self._builders = slot, info, local, builders
        self._owned = tuple(owned)
        self._tasks: dict[str, None] = {}  # sha256 of those that the slot has evaluated, the oldest first

    @property
    def name(self) -> str:
        return self._slot.name

    @property
    def at_once(self) -> int:
        return min(MOST_SLOTS, self._info.slots + _AHEAD)

    @property
    def target(self) -> Target:
        return self._info.target

    @property
    def environment(self) -> Environment:
        return self._info.environment

    def describe_chip(self) -> str:
        return self.target.fingerprint.chip

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        """Return the verdict of a node of the cluster.

        Raises TaskError; InfrastructureError if the slot fails, is lost or has come back on another machine.
        """
        build = None
        if measurement.timed and not task.workload:
            refused, build = self._builders.check(task, candidate)
            if refused is not None:
                return refused
        self._tasks[task.sha256] = None
        while len(self._tasks) > _KNOWN:
            del self._tasks[next(iter(self._tasks))]
        key = task.id, task.sha256, candidate.sha256, candidate.language, measurement
        found: Evaluation = self._slot.call_again(key, "evaluate", task, candidate, measurement, build)
        if differs := difference(found.target, self.target):
            raise InfrastructureError(f"{self.name} is another machine than before: {differs}", BEGIN_ANOTHER)
        return found

    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        return self.evaluate(task, candidate, measurement)

    def profiled_there(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: str | None, closely: bool
    ) -> str | None:
        key = "profile", task.sha256, candidate.sha256, closely
        asked = task, candidate, evaluation, known, closely
        found: str | None = self._slot.call_again(key, "profile", *asked)
        return found

    def work(self, task: Task) -> Work:
        found: Work = self._slot.call_again(("work", task.sha256), "work", task)
        return found

    def computing(self) -> AbstractContextManager[None]:
        """Return a block that waits for nothing: nothing is timed in this process."""
        return contextlib.nullcontext()

    def holds(self, task: Task) -> bool:
        """Tell whether the slot has evaluated the task before, so that it may have it set up."""
        return task.sha256 in self._tasks

    def fault(self) -> str | None:
        if self._slot.lost:
            return self._slot.lost
        try:
            found: str | None = self._slot.call("fault")
        except InfrastructureError:
            return self._slot.lost or None  # of a process that is started again
        return found

    def sibling(self, cache: SessionCache | None = None) -> LocalEvaluator:
        member = ClusterEvaluator(self._slot, self._info, self._local.sibling(cache), self._builders)
        member._tasks = self._tasks
        return member

    def abort(self) -> None:
        _end(self._owned)
        super().abort()

    def close(self) -> None:
        _end(self._owned)
        self._local.close()


def on_cluster(
    start: StartSlot,
    *,
    device: str,
    cache: Path,
    recorded: Target | None = None,
    say: Say = _log.warning,
) -> LocalEvaluator:
    """Return an evaluator of the timing slots of the cluster that this process is attached to.

    `start`: starts the evaluator of a node. `device`: "cpu" or "cuda:0". `cache`: folder of builds of local
    processes. `recorded`: what a run that goes on was measured on. Nodes of other machines than that, or than
    most, are left out, and `say` is told so, a line each. Raises UsageError if none is left.
    """
    tries = TryCounter()
    handles = [SlotHandle(place, start, MOST_SLOTS, tries) for place in places(device)]
    try:
        started = _started(handles, say)
        timed, builders = of_one_kind(started, recorded, say)
        _warn_of_network(timed, say)
        chosen = {handle for handle, _ in timed} | set(builders)
        _end([handle for handle in handles if handle not in chosen])
        local = Referee.start(cache=cache)
    except BaseException:
        _end(handles)
        raise
    helpers = BuilderSlots(builders)
    *others, last = timed  # closed last, with the process that the others' are forked from
    owned = [*(handle for handle, _ in timed), *builders]  # by each, to end all of them at the same time
    members = [ClusterEvaluator(handle, info, local.sibling(), helpers, owned) for handle, info in others]
    members.append(ClusterEvaluator(*last, local, helpers, owned))
    return SeveralDevices(members) if others else members[0]


def of_one_kind(
    started: Sequence[tuple[SlotHandle, SlotInfo]], recorded: Target | None, say: Say
) -> tuple[list[tuple[SlotHandle, SlotInfo]], list[SlotHandle]]:
    """Return the timing slots on machines of one kind, and builders of that kind.

    The kind is that of `recorded`, else the one that most timing slots are of. Raises UsageError.
    """
    timed = [pair for pair in started if pair[0].place.timed]

    def alike(target: Target) -> list[tuple[SlotHandle, SlotInfo]]:
        return [pair for pair in timed if not difference(pair[1].target, target)]

    kind = recorded or max((info.target for _, info in timed), key=lambda target: len(alike(target)))
    kept: list[tuple[SlotHandle, SlotInfo]] = []
    for handle, info in timed:
        if differs := difference(info.target, kind):
            if recorded is None:
                say(f"{handle.name} is left out: {differs}")
            continue
        same = [other for other, known in kept if known.machine == info.machine]
        if same and not handle.place.gpus:
            say(f"{handle.name} is left out: {same[0].name} is on the same machine, which is timed")
            continue
        kept.append((handle, info))
    if not kept:
        differs = difference(timed[0][1].target, kind)
        raise UsageError(f"no node of the cluster is what this run was measured on: {differs}", BEGIN_ANOTHER)
    machines = {info.machine for _, info in kept}
    return kept, [
        handle
        for handle, info in started
        if not handle.place.timed and info.machine not in machines and not difference(info.target, kind)
    ]


def _started(handles: Sequence[SlotHandle], say: Say) -> list[tuple[SlotHandle, SlotInfo]]:
    """Wait for actors, and return those that have started. Raises UsageError if none has that is timed."""
    import ray

    began, said = time.monotonic(), False
    waiting = {handle.ready: handle for handle in handles}
    found: dict[SlotHandle, SlotInfo] = {}
    why: dict[SlotHandle, str] = {}
    while waiting and (left := began + START_S - time.monotonic()) > 0:
        ready, _ = ray.wait(list(waiting), timeout=min(left, _SAID_AFTER_S))
        for reference in ready:
            handle = waiting.pop(reference)
            try:
                info = handle.info()
            except KernelwrightError as error:
                why[handle] = _no_kernelwright(error.message)
                continue
            if info.version != (mine := kernelwright_version()):
                why[handle] = f"it has kernelwright {info.version}, and this is {mine}"
            else:
                found[handle] = info
        if not ready and not said:
            said, first = True, next(iter(waiting.values()))
            say(f"waiting for {first.name}: is it starting, or used by another job?")
    for handle in waiting.values():
        why[handle] = f"it has not started within {START_S:.0f} s: does another job use it?"
    if not any(handle.place.timed for handle in found):
        at = next(handle for handle in why if handle.place.timed)
        raise UsageError(
            f"no node of the cluster evaluates: {at.name}: {why[at]}",
            "install the same kernelwright on every node; see `ray status` for what they do",
        )
    for handle, reason in why.items():
        say(f"{handle.name} is left out: {reason}")
    return [(handle, found[handle]) for handle in handles if handle in found]


def _warn_of_network(timed: Sequence[tuple[SlotHandle, SlotInfo]], say: Say) -> None:
    """Say where candidates could reach Ray's ports, which take orders from anybody."""
    open_ones = [
        handle.name
        for handle, info in timed
        if any(layer.name == "network_namespace" and not layer.on for layer in info.environment.sandbox)
    ]
    if open_ones:
        more = f" and {len(open_ones) - 1} more" if len(open_ones) > 1 else ""
        say(f"{open_ones[0]}{more}: candidates can reach the network and Ray's ports (docs/cluster.md)")


def _no_kernelwright(message: str) -> str:
    return "kernelwright is not installed there" if "No module named 'kernelwright'" in message else message


def _end(handles: Sequence[SlotHandle]) -> None:
    """End actors, all at the same time."""
    threads = [threading.Thread(target=handle.close, daemon=True) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


__all__ = ["MOST_SLOTS", "BuilderSlots", "ClusterEvaluator", "SlotPlace", "of_one_kind", "on_cluster"]
