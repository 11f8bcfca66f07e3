"""The referee: evaluates candidates on one target, each in a `Trial`."""

import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from kernelwright.kernelbench.evaluator import faults, without_gpu
from kernelwright.kernelbench.evaluator.memory import eviction
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.processes.worker_handle import NotStopped
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Effort, Limits, Protocol
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.timing.target import detect_target
from kernelwright.kernelbench.evaluator.trial import Trial
from kernelwright.kernelbench.machine import physical_threads
from kernelwright.kernelbench.records import (
    TRAFFIC,
    Candidate,
    Environment,
    Evaluation,
    Stages,
    Target,
    Task,
    Verdict,
    Work,
)

BASELINES = ("eager", "compile")
_ATTEMPTS = 3  # at an evaluation in which a worker does not stop
_LATELY_S = 300.0  # after which ceilings that are nearly reached are measured again
ALL_BASELINES = (*BASELINES, "max-autotune", "cuda-graphs", TRAFFIC)


class Evaluator:
    """Evaluates candidates on one target. The oracle and baselines of the last task stay up between calls."""

    def __init__(
        self,
        *,
        cache: Path,
        protocol: Protocol | None = None,
        limits: Limits | None = None,
        threads: int | None = None,
        without: Collection[str] = (),
        pool: WorkerPool | None = None,
        session_cache: SessionCache | None = None,
        device: str = "cpu",
        chips: Sequence[str] = (),
        emulating: "Evaluator | None" = None,
        timing_lock: TimingLock | None = None,
    ) -> None:
        """`without`: layers of the sandbox to leave off; see `WorkerPool`. `device`: "cpu" or "cuda:0".

        `chips`: on the CPU, have candidates be GPU kernels that are checked (`without_gpu`), built for these,
        "sm_90", and not timed. `pool`, `session_cache`, `timing_lock`: another evaluator's. `emulating`: one
        for the CPU, for `protocol.check_first`; made by default.
        """
        self.protocol = protocol or Protocol()
        self.chips = tuple(chips)
        self.limits = limits or Limits()
        self.pool = pool or WorkerPool(
            threads=threads or physical_threads(),
            cache=cache,
            limits=self.limits,
            without=without,
            device=device,
            timing_lock=timing_lock,
        )
        self._owns_pool = pool is None
        if emulating is None and self.protocol.check_first:
            emulating = Evaluator(
                cache=cache,
                protocol=Protocol(families=without_gpu.FEW),
                limits=self.limits,
                threads=self.pool.threads,
                without=without,
                timing_lock=self.pool.timing_lock,
            )
        self.emulating = emulating
        self._session_cache = session_cache or SessionCache()
        self.layers = self.pool.layers()
        self._session: TaskSession | None = None
        self._target: Target | None = None
        self._measured_at = -_LATELY_S

    @property
    def target(self) -> Target:
        if self._target is None:
            with self.pool.timing_lock.exclusive(), faults.of_the_machine():
                self._target = detect_target(self.pool, self.pool.device)
        return self._target

    def measure_again(self, unless_lately: bool = False) -> Target:
        """The target with its ceilings raised to what the machine shows now, if that is more."""
        now = time.monotonic()
        if unless_lately and now - self._measured_at < _LATELY_S:
            return self.target
        self._measured_at = now
        with self.pool.timing_lock.exclusive():
            self._target = detect_target(self.pool, self.pool.device, again=True)
        return self._target

    @property
    def environment(self) -> Environment:
        protocol = self.protocol
        cold = protocol.caches == "cold" and (self.pool.device != "cpu" or eviction.of_machine().complete)
        return Environment(
            sandbox=self.layers,
            caches="cold" if cold else "hot",  # where there is too little memory to empty them with
            arrivals_per_s=protocol.arrivals_per_s,
        )

    def session(self, task: Task, vary_weights: bool = True) -> TaskSession:
        """The task's session: the one that is open, if it is the same task's, else a new one."""
        held = self._session
        same = held is not None and held.task == task and held.vary_weights == vary_weights
        if held is not None and same and held.alive:
            return held
        with self.computing(), faults.of_the_machine():
            self.release_session()
            self._session = self._session_cache.take(task, vary_weights) or TaskSession(
                self.pool, self.target, task, self.protocol, self.limits, vary_weights
            )
            if len(self.chips) == 1:
                self._session.chip = self.chips[0]
        return self._session

    def make_room(self, session: TaskSession, workers: int) -> None:
        """Have parked sessions make way for what so many workers of this one may take."""
        if self._session_cache.has_room:
            self._session_cache.evict(session.lacking_bytes(workers))

    def holds(self, task: Task) -> bool:
        """Whether a session of this task is up that this evaluator could use at once."""
        held = self._session
        return (held is not None and held.task == task) or self._session_cache.holds(task)

    def computing(self) -> AbstractContextManager[None]:
        """What this thread does in the block waits while a sibling times."""
        return self.pool.timing_lock.shared()

    def sibling(self, session_cache: SessionCache | None = None) -> "Evaluator":
        """Another evaluator, to be used in another thread, whose processes are forked from the same one.

        One sibling times at a time, and meanwhile the others stand still (`TimingLock`). To be closed first.
        Sessions that it does not need any more go to `session_cache`.
        """
        return Evaluator(
            cache=self.pool.cache,
            protocol=self.protocol,
            limits=self.limits,
            pool=self.pool,
            session_cache=session_cache,
            chips=self.chips,
            emulating=self.emulating.sibling() if self.emulating is not None else None,
        )

    def evaluate(
        self,
        task: Task,
        candidate: Candidate,
        baselines: Sequence[str] = BASELINES,
        effort: Effort | None = None,
        to_beat: float | None = None,
    ) -> Evaluation:
        """The verdict on `candidate`. Raises TaskError when the task itself is at fault.

        `baselines`: of ALL_BASELINES; "eager" always is among them. `effort`: of timing, the
        protocol's own by default. `to_beat`: a speedup over eager; where it is clear on which side of
        it the candidate is, that is enough, however wide the interval.
        """
        if self.chips:
            return without_gpu.check(self, task, candidate, self.chips)
        if self.emulating is not None and candidate.language == "cuda":
            with self.computing():
                objection = without_gpu.objection(self.emulating, task, candidate)
            if objection is not None:
                here = {"target": self.target, "environment": self.environment}
                return objection.model_copy(update=here)
        return self.tried(task, candidate, baselines, effort, to_beat)

    def tried(
        self,
        task: Task,
        candidate: Candidate,
        baselines: Sequence[str] = (),
        effort: Effort | None = None,
        to_beat: float | None = None,
    ) -> Evaluation:
        """`evaluate`, at the task's own sizes and for no chips."""
        wanted = tuple(name for name in ALL_BASELINES if name in ("eager", *baselines))
        with self.computing(), faults.of_the_machine():
            for attempt in range(_ATTEMPTS):
                trial = Trial(self, task, candidate, wanted, effort or self.protocol.effort, to_beat)
                try:
                    return trial.evaluation()
                except NotStopped as failure:  # a matter of what else the machine does, as a rule
                    if attempt < _ATTEMPTS - 1:
                        continue
                    if failure.role in sandbox.TRUSTED:
                        raise
                    # Its fault, if what is trusted can be stopped at the same time.
                    self.session(task).oracle.stop_again()
                    return self._untried(task, candidate, Verdict.runtime_error, failure.message)
        raise AssertionError

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        """A build error for what is no candidate at all, without trying it."""
        return self._untried(task, candidate, Verdict.build_error, reason)

    def unmeasured(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        """For what is neither checked nor timed, because `reason`."""
        return self._untried(task, candidate, Verdict.unmeasured, reason)

    def _untried(self, task: Task, candidate: Candidate, verdict: Verdict, reason: str) -> Evaluation:
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
        """What a call of the task's reference has to move and compute. Raises TaskError."""
        with self.computing():
            oracle = self.session(task).oracle
        return Work(
            input_bytes=oracle.input_bytes,
            weight_bytes=oracle.weight_bytes,
            output_bytes=oracle.output_bytes,
            flops=oracle.flops,
        )

    def audit(self, task: Task) -> list[str]:
        """What is wrong with a task's reference, in words: work that it could leave out. Raises TaskError."""
        with self.computing():
            return self.session(task).oracle.audit()

    def release_session(self) -> None:
        """Let go of the session that is open; it is closed where it has no place among the parked ones."""
        if self._session is not None:
            self._session_cache.put(self._session)
            self._session = None

    def abort(self) -> None:
        """End all workers at once, from any thread; who waits for one is told that it died."""
        self.pool.abort()
        if self.emulating is not None:
            self.emulating.abort()

    def close(self) -> None:
        if self.emulating is not None:
            self.emulating.close()
        with self.computing():
            if self._session is not None:
                self._session.close()
                self._session = None
        if self._owns_pool:
            self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
