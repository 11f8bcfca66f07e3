"""The sessions of tasks on one target: what code that runs behind the sandbox works with.

Profilers, tracing and builds for other chips start processes of their own in the evaluator's sandbox. They
get `Sessions` from an evaluator and use this much of it, and nothing else of the evaluator's insides:

    with sessions.computing():                       # not while another evaluation is timed
        session = sessions.open(task)                # the oracle is up, inputs lie in shared memory
        sessions.pool.import_first([MODULE])         # once, before the sandbox closes
        worker, answer = session.load("builder", source, "candidate", "ModelNew", limit_s, sha256)
        with worker:
            session.give_input(worker)               # a fresh input in slot 0
            worker.thaw()                            # workers are stopped unless they are asked something
            answer = worker.ask({"do": "..."}, limit_s)

`answer` comes from a process that a candidate controls: validate it (`processes.answers`). `entry` of
`session.load` and `pool.start` names the function that the worker runs, "package.module:serve", which is
called with a `processes.channel.Channel`.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError
from kernelwright.kernelbench.evaluator import faults
from kernelwright.kernelbench.evaluator.memory import eviction
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits, Protocol
from kernelwright.kernelbench.evaluator.refusal import NoDeviceMemory
from kernelwright.kernelbench.evaluator.sandbox import process_tree
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.timing.target import describe_chip, describe_gpu, detect_target
from kernelwright.kernelbench.records import Environment, Target, Task

_LATELY_S = 300.0  # after which ceilings in doubt are measured once more where the machine was busy


@dataclass
class _Machine:
    """Measurements of the machine, which siblings have in common."""

    target: Target | None = None
    measured_again_at: float | None = None  # on the monotonic clock


class Sessions:
    """Opens sessions, one at a time; the oracle and baselines of the last task stay up between calls."""

    def __init__(
        self,
        pool: WorkerPool,
        protocol: Protocol,
        limits: Limits,
        cache: SessionCache | None = None,
        chip: str | None = None,
    ) -> None:
        """Begin without sessions.

        `cache` keeps sessions that are released. `chip` ("sm_90") is what host code of GPU candidates is told
        of where there is no GPU; None: any.
        """
        self.pool, self.protocol, self.limits, self.chip = pool, protocol, limits, chip
        self._cache = cache or SessionCache()
        self._session: TaskSession | None = None
        self._machine = _Machine()

    def sibling(self, cache: SessionCache | None = None) -> "Sessions":
        """Sessions for another thread, whose processes are forked from the same one. To be closed first."""
        sibling = Sessions(self.pool, self.protocol, self.limits, cache, self.chip)
        sibling._machine = self._machine
        return sibling

    @property
    def target(self) -> Target:
        """The machine with its ceilings, measured on first use."""
        machine = self._machine
        if machine.target is None:
            with self.pool.timing_lock.exclusive(), faults.of_the_machine():
                machine.target = machine.target or detect_target(self.pool, self.pool.device)
        return machine.target

    def describe_chip(self) -> str:
        """Return the name of the GPU's chip. Raises MissingPrerequisite without such a GPU."""
        with self.computing(), faults.of_the_machine():
            return describe_chip(self.pool)

    def measure_again(self) -> Target:
        """Return the target with its ceilings raised to what the machine shows now, if that is more."""
        self._machine.measured_again_at = time.monotonic()
        with self.pool.timing_lock.exclusive():
            self._machine.target = detect_target(self.pool, self.pool.device, again=True)
        return self._machine.target

    def measure_again_once(self) -> Target:
        """Measure again unless that was done: the second time tells no more, if the machine was not busy."""
        before, target = self._machine.measured_again_at, self.target
        if before is not None and (not target.ceilings.busy or time.monotonic() - before < _LATELY_S):
            return target
        return self.measure_again()

    @property
    def environment(self) -> Environment:
        """The sandbox layers that are on, and how calls are timed."""
        protocol = self.protocol
        cold = protocol.caches == "cold" and (self.pool.device != "cpu" or eviction.of_machine().complete)
        return Environment(
            sandbox=self.pool.layers(),
            caches="cold" if cold else "hot",  # where there is too little memory to empty them with
            arrivals_per_s=protocol.arrivals_per_s,
        )

    def open(self, task: Task, vary_weights: bool = True) -> TaskSession:
        """Return the session of `task`: the one that is open if it fits, one of the cache, or a new one.

        `vary_weights`: both sides get other weights than their constructors drew. Of a task of several sizes
        it is that of the first. Raises TaskError when the task itself is at fault.
        """
        task = task.primary
        held = self._session
        same = held is not None and held.task == task and held.vary_weights == vary_weights
        if held is not None and same and held.alive:
            return held
        with self.computing(), faults.of_the_machine():
            self.release()
            self._session = self._cache.take(task, vary_weights) or self._begun(task, vary_weights)
            self._session.chip, self._session.others_parked = self.chip, self._cache.holds_any
        return self._session

    def _begun(self, task: Task, vary_weights: bool) -> TaskSession:
        """Return a new session; cached ones are evicted where the GPU has too little memory for it."""
        while True:
            try:
                return TaskSession(self.pool, self.target, task, self.protocol, self.limits, vary_weights)
            except NoDeviceMemory:
                if not self.evict():
                    raise

    def holds(self, task: Task) -> bool:
        """Tell whether a session of `task` is up that could be used at once."""
        held, task = self._session, task.primary
        return (held is not None and held.task == task) or self._cache.holds(task)

    def make_room(self, session: TaskSession, workers: int) -> None:
        """Evict cached sessions to make room for the memory that so many workers of this one may take."""
        if self._cache.has_room:
            self._cache.evict(session.footprint.wanted_bytes(workers))
            on_device = workers if session.one_process else workers + 1  # with a candidate's second process
            self._cache.evict_on_device(lambda: session.footprint.lacking_device_bytes(on_device))

    def evict(self) -> bool:
        """Close the cached session that was used longest ago; False if there is none."""
        return self._cache.evict_oldest(process_tree.GONE_S)

    def device_fault(self) -> str | None:
        """Say why the GPU no longer works; None while it does, and on the CPU.

        Of a fault that only the open session has (an oracle whose context is lost), nothing is said.
        """
        if self.pool.device == "cpu":
            return None
        with self.computing():
            try:
                if self._session is not None and self._session.alive:
                    self._session.oracle.memory.is_idle()
                    return None
            except KernelwrightError:
                pass
            try:
                error = describe_gpu(self.pool).get("error")
            except InfrastructureError as failure:
                return failure.message
        return None if error is None else str(error)

    def release(self) -> None:
        """Put the open session into the cache; it is closed where there is no room for it."""
        if self._session is not None:
            self._cache.put(self._session)
            self._session = None

    def computing(self) -> AbstractContextManager[None]:
        """Return a block in which this thread computes, and waits while another evaluation is timed."""
        return self.pool.timing_lock.shared()

    def close(self) -> None:
        with self.computing():
            if self._session is not None:
                self._session.close()
                self._session = None
