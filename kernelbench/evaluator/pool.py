"""Pool of evaluations for searches and training: several run concurrently, and one at a time is timed.

Building and verifying run concurrently, in slots; while one slot is timed, the others are stopped, for a
timing that a compiler shares its cores with is worth nothing. Of several GPUs each has slots, processes and
CPUs of its own, and one of its slots is timed at a time. Two GPUs, and the jobs of three tasks:

    cuda:0   task A, round 1: timed │ A, round 2: builds, verifies │ timed      A's session is parked here
    cuda:1   B, round 1: verifies │ timed │ C, round 1: builds │ timed │ B, round 2

A job waits some seconds for the device that its task's session is parked on. One that fails for want of
something (memory, a device that works) is done by another device; a device that fails is left out.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from operator import methodcaller
from typing import Any, Self, TypeVar

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator.device_slots import DeviceSlots
from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.job_queue import Job, JobFit, JobOutcome, JobQueue
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.protocol import Measurement
from kernelwright.kernelbench.machine import memory_bytes, usable_cpus
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Task, Work

T = TypeVar("T")
_SLOT_BYTES = 6 << 30  # of memory, that a slot's oracle, workers and their inputs and outputs may take
_SLOTS = 4  # by default, at most, as all others are stopped while one is timed; chosen by hand
_CPUS_OF_A_SLOT = (
    2  # oracle and candidate compute at the same time; two slots on two CPUs took longer than one
)
_SLOTS_ON_GPU = 2  # at most: every slot has an oracle, baselines and inputs on it
_REMEMBERED = 10_000  # evaluations
_STAY_S = 10.0  # that a job waits for the device of its session, about what starting another takes; by hand
# Seconds after which Python lets another thread go on: two devices are timed by two threads, and one of them
# may be computing when the other's worker answers. By default 5 ms, as long as a block.
_SWITCH_S = 1e-4
_log = logging.getLogger("kernelwright")


class NoVerdictError(InfrastructureError):
    """An evaluation that was tried often enough: no other device tries it again."""


class EvaluationPool:
    """Evaluates what is submitted from any thread; what was evaluated before is not evaluated again."""

    def __init__(
        self, evaluator: LocalEvaluator, slots: int | None = None, parked_bytes: int | None = None
    ) -> None:
        """`slots`: evaluations under way at a time; a few, as CPUs and memory allow, by default.

        Every device has one at least, and as many as the others. `parked_bytes`: of memory that parked
        sessions may take, by default what slots leave.
        """
        self._evaluator = evaluator
        members = evaluator.members
        each = -(-slots // len(members)) if slots else evaluator.at_once or _slots_here(members)
        self.slots = each * len(members)
        if parked_bytes is None:
            parked_bytes = max(0, memory_bytes() - self.slots * _SLOT_BYTES)
        self._devices = [DeviceSlots(member, each, parked_bytes // len(members)) for member in members]
        self._queue = JobQueue()
        self._lock = threading.Lock()
        self._known: dict[Hashable, JobOutcome] = {}  # the oldest first
        self._work: dict[tuple[str, str], Work] = {}
        self._running: dict[int, str] = {}  # task ids, by thread
        self._aborted = False
        self._switch_s = sys.getswitchinterval()
        if len(members) > 1:
            sys.setswitchinterval(_SWITCH_S)
        self._threads = [
            threading.Thread(
                target=self._slot, args=(device, own), name=f"{device.name}-{number}", daemon=True
            )
            for device in self._devices
            for number, own in enumerate(device.evaluators)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def timing_lock(self) -> TimingLock:
        """Lock that keeps who computes beside the pool stopped while a slot is timed."""
        return self._evaluator.timing_lock

    @property
    def target(self) -> Target:
        return self._evaluator.target

    @property
    def waiting(self) -> int:
        """Return the number of jobs that wait for a slot."""
        return self._queue.waiting

    @property
    def running(self) -> list[str]:
        """Return the tasks of the jobs that slots are doing."""
        return list(self._running.values())

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
        client: str = "",
    ) -> Future[Evaluation]:
        """Return the evaluation to come, as of `LocalEvaluator.evaluate`; clients take turns.

        The same question asked twice is one evaluation. What ended with an error may be asked again.
        Cancelling gives up the answer; what everybody gave up before it began is not evaluated. Raises
        RuntimeError once the pool is closed.
        """
        key = task.id, task.sha256, candidate.sha256, candidate.language, measurement

        evaluate = methodcaller("evaluate", task, candidate, measurement)
        return self._submit(Job(task, evaluate, client, key))

    def ask(self, task: Task, do: Callable[[LocalEvaluator], T], client: str = "") -> Future[T]:
        """Run `do` in a slot, with its sessions of tasks; the result is not remembered.

        Raises RuntimeError once the pool is closed; what waited then ends with CancelledError.
        """
        return self._submit(Job(task, do, client))

    def evaluate(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
    ) -> Evaluation:
        """Wait for the result of `submit`, with the task as the client."""
        return self.submit(task, candidate, measurement, client=task.id).result()

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return self._evaluator.rejected(task, candidate, reason)

    def work(self, task: Task) -> Work:
        """Work of a task, as of `LocalEvaluator.work`; computed once for a task."""
        key = task.id, task.sha256
        if key not in self._work:
            self._work[key] = self.ask(task, lambda evaluator: evaluator.work(task), task.id).result()
        return self._work[key]

    def audit(self, task: Task) -> list[str]:
        """Sentences on a task, as of `LocalEvaluator.audit`, with the task as the client."""

        def inspect(evaluator: LocalEvaluator) -> tuple[list[str], Work]:
            return evaluator.audit(task), evaluator.work(task)

        findings, self._work[task.id, task.sha256] = self.ask(task, inspect, task.id).result()
        return findings

    def abort(self) -> None:
        """End all that is under way: who waits for it is told so. The pool is of no use afterwards."""
        self._aborted = True
        self._queue.close(discard=True)
        self._evaluator.abort()

    def _submit(self, job: Job) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            known = self._known.get(job.key) if job.key is not None else None
            if known is None:
                self._queue.put(job)
                known = job.outcome
                if job.key is not None:
                    self._remember(job)
            if not known.result.done():
                known.answers.append(answer)
        known.result.add_done_callback(partial(_pass_on, answer))
        return answer

    def _remember(self, job: Job) -> None:
        self._known[job.key] = job.outcome
        while len(self._known) > _REMEMBERED and next(iter(self._known.values())).result.done():
            del self._known[next(iter(self._known))]

    def _given_up(self, job: Job) -> bool:
        """Return True if nobody waits for it any more; then the next who asks begins again."""
        with self._lock:
            if not job.outcome.given_up:
                return False
            self._known.pop(job.key, None)
        return job.outcome.result.cancel()

    def _slot(self, device: DeviceSlots, evaluator: LocalEvaluator) -> None:
        fit = partial(self._fit, device)
        with evaluator:
            while (job := self._next(device, fit)) is not None:
                if self._given_up(job):
                    self._queue.done()
                    continue
                came: Any
                fault = None
                try:
                    with evaluator.computing():
                        came = job.do(evaluator)
                        fault = device.failure(evaluator, came)
                        if device.cache.has_room:
                            evaluator.release()  # before whoever asked comes back with the next job
                except BaseException as error:  # noqa: BLE001 - it is whoever asked who must know
                    came, fault = error, None if self._aborted else device.failure(evaluator, error)
                if self._aborted and not isinstance(came, BaseException):  # of workers that were killed
                    came = InfrastructureError("it was ended while it was under way", "start it again")
                if fault is not None:
                    why = f"{device.name} does not work any more: {fault}"
                    came = InfrastructureError(why, "reset it, or name another --target")
                again = isinstance(came, InfrastructureError) and not isinstance(came, NoVerdictError)
                if again and self._done_elsewhere(device, job, fault):
                    continue
                self._tell(device, job, came)

    def _next(self, device: DeviceSlots, fit: Callable[[Job], JobFit]) -> Job | None:
        """Take the next job for the slot of this thread; None if it is to end."""
        slot = threading.get_ident()
        self._running.pop(slot, None)
        job = self._queue.take(fit, lambda: device.fault is not None)
        if job is not None:
            self._running[slot] = job.task.id
        return job

    def _fit(self, device: DeviceSlots, job: Job) -> JobFit:
        others = self._others(device, job)
        if others and device.name in job.failed_on:
            return JobFit.never
        if device.holds(job.task):
            return JobFit.at_hand
        waits = time.monotonic() - job.since < _STAY_S
        return JobFit.not_yet if waits and any(other.holds(job.task) for other in others) else JobFit.well

    def _others(self, device: DeviceSlots, job: Job) -> list[DeviceSlots]:
        """Return the other devices that work and that a job has not failed on."""
        return [
            other
            for other in self._devices
            if other is not device and other.fault is None and other.name not in job.failed_on
        ]

    def _done_elsewhere(self, device: DeviceSlots, job: Job, fault: str | None) -> bool:
        """Have another device do a job that failed here; False if there is none.

        With a fault of the device it is left out, unless it is the last one.
        """
        if self._aborted:
            return False
        others = self._others(device, job)
        if fault is not None and any(other.fault is None for other in self._devices if other is not device):
            self._leave_out(device, fault)
        if others:
            job.failed_on.add(device.name)
            self._queue.put_back(job)
        return bool(others)

    def _leave_out(self, device: DeviceSlots, fault: str) -> None:
        with self._lock:  # several of its slots may find out
            if device.fault is not None:
                return
            device.fault = fault
        left = ", ".join(other.name for other in self._devices if other.fault is None)
        _log.warning(f"{device.name} is left out: {fault}; {left} goes on")
        self._queue.look_again()
        device.close()

    def _tell(self, device: DeviceSlots, job: Job, came: Any) -> None:
        """Tell those who asked what came of a job, a result or an error."""
        if isinstance(came, BaseException):
            with self._lock:
                self._known.pop(job.key, None)
            job.outcome.result.set_exception(came)
        else:
            device.done()
            for other in self._devices:
                if other.name in job.failed_on and (why := other.done_elsewhere()) is not None:
                    self._leave_out(other, why)
            job.outcome.result.set_result(came)
        self._queue.done()

    def close(self, discard: bool = False) -> None:
        """Wait for what was submitted; with `discard`, only for what is under way."""
        self._queue.close(discard)
        for thread in self._threads:
            thread.join()
        for device in self._devices:
            device.close()
        sys.setswitchinterval(self._switch_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # nobody waits any more for what is under way, which may take minutes
            self.abort()
        self.close()


def _pass_on(answer: Future[T], done: Future[T]) -> None:
    """One asker's `answer`, who may have given it up, is what came of a job."""
    if done.cancelled():
        answer.cancel()
    if not answer.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def _slots_here(members: Sequence[LocalEvaluator]) -> int:
    """Return the number of slots for each of these devices that this machine's CPUs and memory allow."""
    on_gpu = members[0].sessions.pool.device != "cpu"
    most = min(most_slots() // len(members), _SLOTS_ON_GPU if on_gpu else _SLOTS)
    return max(1, min(usable_cpus() // len(members) // _CPUS_OF_A_SLOT, most))


def most_slots() -> int:
    """Return the number of evaluations that this machine's memory allows at a time."""
    return max(1, memory_bytes() // _SLOT_BYTES)
