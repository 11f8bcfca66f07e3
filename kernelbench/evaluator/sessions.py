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

from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError
from kernelwright.kernelbench.evaluator import faults
from kernelwright.kernelbench.evaluator.memory import eviction
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits, Protocol
from kernelwright.kernelbench.evaluator.refusal import DeviceFull
from kernelwright.kernelbench.evaluator.sandbox import process_tree
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.timing.target import describe_chip, describe_gpu, detect_target
from kernelwright.kernelbench.records import Environment, Target, Task

_LATELY_S = 300.0  # after which ceilings that are nearly reached are measured again


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
        self._target: Target | None = None
        self._measured_at = -_LATELY_S

    def sibling(self, cache: SessionCache | None = None) -> "Sessions":
        """Sessions for another thread, whose processes are forked from the same one. To be closed first."""
        return Sessions(self.pool, self.protocol, self.limits, cache, self.chip)

    @property
    def target(self) -> Target:
        """The machine with its ceilings, measured on first use."""
        if self._target is None:
            with self.pool.timing_lock.exclusive(), faults.of_the_machine():
                self._target = detect_target(self.pool, self.pool.device)
        return self._target

    def describe_chip(self) -> str:
        """Return the name of the GPU's chip. Raises MissingPrerequisite without such a GPU."""
        with self.computing(), faults.of_the_machine():
            return describe_chip(self.pool)

    def measure_again(self, unless_lately: bool = False) -> Target:
        """Return the target with its ceilings raised to what the machine shows now, if that is more."""
        now = time.monotonic()
        if unless_lately and now - self._measured_at < _LATELY_S:
            return self.target
        self._measured_at = now
        with self.pool.timing_lock.exclusive():
            self._target = detect_target(self.pool, self.pool.device, again=True)
        return self._target

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

        `vary_weights`: both sides get other weights than their constructors drew. Raises TaskError when the
        task itself is at fault.
        """
        held = self._session
        same = held is not None and held.task == task and held.vary_weights == vary_weights
        if held is not None and same and held.alive:
            return held
        with self.computing(), faults.of_the_machine():
            self.release()
            self._session = self._cache.take(task, vary_weights) or self._begun(task, vary_weights)
            self._session.chip = self.chip
        return self._session

    def _begun(self, task: Task, vary_weights: bool) -> TaskSession:
        """Return a new session; cached ones are evicted where the GPU has too little memory for it."""
        while True:
            try:
                return TaskSession(self.pool, self.target, task, self.protocol, self.limits, vary_weights)
            except DeviceFull:
                if not self.evict():
                    raise

    def holds(self, task: Task) -> bool:
        """Tell whether a session of `task` is up that could be used at once."""
        held = self._session
        return (held is not None and held.task == task) or self._cache.holds(task)

    def make_room(self, session: TaskSession, workers: int) -> None:
        """Evict cached sessions to make room for the memory that so many workers of this one may take."""
        if self._cache.has_room:
            self._cache.evict(session.lacking_bytes(workers))
            self._cache.evict_on_device(lambda: session.lacking_device_bytes(workers))

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
