"""Evaluators, as those who ask see them, and what all evaluators of this machine have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self

from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.protocol import Measurement
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.sessions import Sessions
from kernelwright.kernelbench.evaluator.workloads import at_every_size
from kernelwright.kernelbench.records import (
    Candidate,
    Environment,
    Evaluation,
    Stages,
    Target,
    Task,
    Verdict,
    Work,
)


class Evaluator(Protocol):
    """Evaluates candidates on one target."""

    @property
    def target(self) -> Target:
        """The device, with its measured ceilings."""
        ...

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        """Return the verdict on a candidate. Raises TaskError when the task itself is at fault."""
        ...

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        """Return a build error for a reply that is no candidate, without trying it."""
        ...

    def work(self, task: Task) -> Work:
        """Return what a call of the reference must move (bytes) and compute (FLOPs). Raises TaskError."""
        ...


class LocalEvaluator(ABC):
    """An evaluator with processes on this machine, which end when it is closed.

    They trace and inspect tasks. Candidates are evaluated in them too, unless a server does that
    (`kernelbench.remote`), which then answers for the target, the environment and its faults.
    """

    def __init__(self, sessions: Sessions, emulating: Sessions | None = None) -> None:
        """`emulating`: sessions on the CPU in which kernels of this GPU are emulated first."""
        self.sessions, self.emulating = sessions, emulating

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        """Return the verdict on a candidate, at all sizes of the task.

        Raises TaskError when the task itself is at fault.
        """
        if task.workload:
            return at_every_size(self.at_one_size, task, candidate, measurement)
        return self.at_one_size(task, candidate, measurement)

    @abstractmethod
    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        """Return the verdict on a candidate for a task of one size. Raises TaskError."""

    @abstractmethod
    def sibling(self, cache: SessionCache | None = None) -> "LocalEvaluator":
        """Another evaluator for another thread, whose processes are forked from the same one.

        One of them times at a time (`TimingLock`). To be closed first. `cache` keeps sessions it releases.
        """

    @property
    def members(self) -> Sequence["LocalEvaluator"]:
        """Evaluators of one device each: this one, unless it has several devices."""
        return (self,)

    @property
    def name(self) -> str:
        """Name of the device in messages, such as "cuda:0"."""
        return self.sessions.pool.device

    def describe_chip(self) -> str:
        """Return the name of a GPU's chip, which devices that share work have in common.

        Raises MissingPrerequisite without such a GPU.
        """
        return self.sessions.describe_chip()

    @property
    def at_once(self) -> int | None:
        """Number of evaluations to hand to it at a time; None: as many as this machine can compute."""
        return None

    @property
    def timing_lock(self) -> TimingLock:
        """Lock that keeps who computes beside this evaluator stopped while it times."""
        return self.sessions.pool.timing_lock

    @property
    def target(self) -> Target:
        """The device, with its measured ceilings."""
        return self.sessions.target

    @property
    def environment(self) -> Environment:
        """The sandbox that candidates run in, and how calls are timed."""
        return self.sessions.environment

    def computing(self) -> AbstractContextManager[None]:
        """Return a block in which this thread does a job, and waits while another evaluation is timed."""
        return self.sessions.computing()

    def holds(self, task: Task) -> bool:
        """Tell whether what an evaluation of `task` needs is set up, so that it would begin at once."""
        return self.sessions.holds(task)

    def release(self) -> None:
        """Let others have what is set up for the last task."""
        self.sessions.release()

    def fault(self) -> str | None:
        """Say why the device no longer works; None while it does."""
        return self.sessions.device_fault()

    def profiled_there(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: str | None, closely: bool
    ) -> str | None:
        """Return what profilers of the machine of `evaluation` read, as JSON; None where that is this one.

        `known`: the profile so far, as JSON. `closely`: with profilers that take minutes.
        """
        return None

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        """Return a build error for a reply that is no candidate, without trying it."""
        return self.untried(task, candidate, Verdict.build_error, reason)

    def untried(self, task: Task, candidate: Candidate, verdict: Verdict, reason: str) -> Evaluation:
        """Return an evaluation that says no more than this verdict, for this reason."""
        return Evaluation(
            task=task.id,
            candidate=candidate.sha256,
            target=self.target,
            verdict=verdict,
            reason=reason,
            stages=Stages(),
            environment=self.environment,
        )

    def work(self, task: Task) -> Work:
        """Return what a call of the reference must move (bytes) and compute (FLOPs). Raises TaskError."""
        with self.sessions.computing():
            return self.sessions.open(task).oracle.work

    def audit(self, task: Task) -> list[str]:
        """Return what is wrong with a reference: work that it could leave out. Raises TaskError."""
        with self.sessions.computing():
            return self.sessions.open(task).oracle.audit()

    def abort(self) -> None:
        """End all workers at once, from any thread; who waits for one is told that it died."""
        self.sessions.pool.abort()

    def close(self) -> None:
        self.sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
