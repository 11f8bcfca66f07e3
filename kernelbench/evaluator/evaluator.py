"""The judge: takes a candidate through build, verification and timing, and gives the verdict."""

import ast
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from kernelbench.errors import InfrastructureError
from kernelbench.evaluator.clocks import watched
from kernelbench.evaluator.measurement import measure
from kernelbench.evaluator.parked import ParkedSessions
from kernelbench.evaluator.plausibility import implausible, near_ceilings
from kernelbench.evaluator.process import Worker, WorkerDied, WorkerTimeout
from kernelbench.evaluator.protocol import Effort, Limits, Protocol
from kernelbench.evaluator.refusal import BaselineFailed, Refused
from kernelbench.evaluator.sanitizer import sanitize
from kernelbench.evaluator.session import TaskSession
from kernelbench.evaluator.target import detect_target
from kernelbench.evaluator.timing import Timings
from kernelbench.evaluator.toolchain import make_wanted_header
from kernelbench.evaluator.verification import verify
from kernelbench.evaluator.workers import WorkerPool
from kernelbench.machine import physical_threads
from kernelbench.records import (
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    GpuClocks,
    Interval,
    Speedup,
    Stages,
    Target,
    Task,
    Timing,
    Verdict,
    Work,
)

BASELINES = ("eager", "compile")
_LATELY_S = 300.0  # after which ceilings that are nearly reached are measured again
_MOST_HEADERS = 3  # precompiled ones, that one candidate may ask for
ALL_BASELINES = (*BASELINES, "max-autotune", "cuda-graphs")


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
        parked: ParkedSessions | None = None,
        device: str = "cpu",
    ) -> None:
        """`without`: layers of the fence to leave off; see `WorkerPool`. `device`: "cpu" or "cuda:0".

        `pool`, `parked`: another evaluator's.
        """
        self.protocol = protocol or Protocol()
        self.limits = limits or Limits()
        self.pool = pool or WorkerPool(
            threads=threads or physical_threads(),
            cache=cache,
            limits=self.limits,
            without=without,
            device=device,
        )
        self._owns_pool = pool is None
        self._parked = parked or ParkedSessions()
        self.layers = self.pool.layers()
        self._session: TaskSession | None = None
        self._target: Target | None = None
        self._measured_at = -_LATELY_S

    @property
    def target(self) -> Target:
        if self._target is None:
            with self.pool.gate.closed():
                self._target = detect_target(self.pool, self.pool.device)
        return self._target

    def measure_again(self, unless_lately: bool = False) -> Target:
        """The target with its ceilings raised to what the machine shows now, if that is more."""
        now = time.monotonic()
        if unless_lately and now - self._measured_at < _LATELY_S:
            return self.target
        self._measured_at = now
        with self.pool.gate.closed():
            self._target = detect_target(self.pool, self.pool.device, again=True)
        return self._target

    @property
    def environment(self) -> Environment:
        protocol = self.protocol
        return Environment(
            sandbox=self.layers, caches=protocol.caches, arrivals_per_s=protocol.arrivals_per_s
        )

    def session(self, task: Task, vary_weights: bool = True) -> TaskSession:
        """The task's session: the one that is open, if it is the same task's, else a new one."""
        held = self._session
        same = held is not None and held.task == task and held.vary_weights == vary_weights
        if held is not None and same and held.alive:
            return held
        with self.computing():
            self.park_session()
            self._session = self._parked.take(task, vary_weights) or TaskSession(
                self.pool, self.target, task, self.protocol, self.limits, vary_weights
            )
        return self._session

    def holds(self, task: Task) -> bool:
        """Whether a session of this task is up that this evaluator could use at once."""
        held = self._session
        return (held is not None and held.task == task) or self._parked.holds(task)

    def computing(self) -> AbstractContextManager[None]:
        """What this thread does in the block waits while a sibling times."""
        return self.pool.gate.lane()

    def sibling(self, parked: ParkedSessions | None = None) -> "Evaluator":
        """Another evaluator, to be used in another thread, whose processes are forked from the same one.

        One sibling times at a time, and meanwhile the others stand still (`Gate`). To be closed first.
        Sessions that it does not need any more go to `parked`.
        """
        return Evaluator(
            cache=self.pool.cache,
            protocol=self.protocol,
            limits=self.limits,
            pool=self.pool,
            parked=parked,
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
        wanted = ("eager", *(name for name in baselines if name != "eager"))
        with self.computing():
            trial = _Trial(self, task, candidate, wanted, effort or self.protocol.effort, to_beat)
            return trial.evaluation()

    def turned_away(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        """A build error for what is no candidate at all, without trying it."""
        return Evaluation(
            task=task.id,
            candidate=candidate.sha256,
            target=self.target,
            verdict=Verdict.build_error,
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

    def park_session(self) -> None:
        """Let go of the session that is open; it is closed where it has no place among the parked ones."""
        if self._session is not None:
            self._parked.put(self._session)
            self._session = None

    def close(self) -> None:
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


class _Trial:
    """One evaluation in the making; what was found stays when a later stage refuses."""

    def __init__(
        self,
        evaluator: Evaluator,
        task: Task,
        candidate: Candidate,
        baselines: Sequence[str],
        effort: Effort,
        to_beat: float | None,
    ) -> None:
        self.evaluator, self.task, self.candidate = evaluator, task, candidate
        self.baselines, self.effort, self.to_beat = baselines, effort, to_beat
        self.clock = evaluator.pool.gate.clock
        self.correctness: Correctness | None = None
        self.timings: Timings | None = None
        self.share: float | None = None
        self.stages: dict[str, float] = {}
        self.compile_s: dict[str, float] = {}
        self.clocks: Sequence[GpuClocks] = ()
        self.failed_baselines: dict[str, str] = {}

    def evaluation(self) -> Evaluation:
        started = self.clock()
        try:
            verdict, reason = self._judge()
        except Refused as refusal:
            verdict, reason = refusal.verdict, refusal.reason
        self.stages["total_s"] = self.clock() - started
        paid = verdict is Verdict.correct
        return Evaluation(
            task=self.task.id,
            candidate=self.candidate.sha256,
            target=self.evaluator.target,
            verdict=verdict,
            reason=reason,
            correctness=self.correctness,
            timing=self._timing(),
            speedup=self._speedup() if paid else None,
            own_kernel_share=self.share,
            stages=Stages(**{name: round(value, 4) for name, value in self.stages.items()}),
            environment=self.evaluator.environment,
        )

    def _judge(self) -> tuple[Verdict, str]:
        _check_syntax(self.candidate.source)
        session = self.evaluator.session(self.task)
        self._build(session)
        worker, weights = self._load(session)
        if weights == "missing":
            worker.close()
            raise Refused(Verdict.wrong_output, "ModelNew has no room for the reference's parameters")
        if weights == "replay" and session.vary_weights:
            # Fused or split weights: both sides keep what their constructors drew from the same seed.
            worker.close()
            session = self.evaluator.session(self.task, vary_weights=False)
            worker, weights = self._load(session)
        with worker:
            with _Stage(self, "verify_s"):
                self.correctness = verify(session, worker)
            if self.candidate.language == "triton" and session.target.device == "cpu":
                return Verdict.unmeasured, "right in Triton's interpreter; there is no GPU to time it on"
            if (tool := self.evaluator.protocol.sanitize) is not None:
                with _Stage(self, "verify_s"):
                    sanitize(session, self.candidate, tool)
            wanted = self.evaluator.protocol.own_kernels
            if wanted > 0:
                with self._load(session)[0] as other:  # a profiler may slow a process down for good
                    self.share = self._own_kernel_share(other)
                if self.share is None or self.share < wanted:
                    known = "an unknown part" if self.share is None else f"{self.share:.0%}"
                    reason = f"right, but {known} of a call is in kernels of its own, not {wanted:.0%}"
                    return Verdict.unmeasured, reason
            self._time(session, worker)
            if wanted == 0:  # last, for the trace may break what it looks at
                self.share = self._own_kernel_share(worker)
        assert self.timings is not None
        candidate_us = self.timings.time_us("candidate").median
        if near_ceilings(session, self.evaluator.target, candidate_us):
            self.evaluator.measure_again(unless_lately=True)
        if implausible(session, candidate_us) is not None:
            # The ceilings may have been measured while the machine was busy.
            session.target = self.evaluator.measure_again()
            why = implausible(session, candidate_us)
            if why is not None:
                return Verdict.implausible, why
        return Verdict.correct, f"{self.correctness.inputs_tried} inputs within the error budget"

    def _build(self, session: TaskSession) -> None:
        """Load the candidate and call it once in the builder, so that all it compiles is in the cache.

        What the call itself does wrong is left to the candidate's own run to show.
        """
        with _Stage(self, "build_s"):
            refusal = self._failed_build(session)
            builds = session.pool.builds_of(self.candidate.sha256)
            for _ in range(_MOST_HEADERS):
                if not make_wanted_header(session.pool, builds):
                    break
                refusal = self._failed_build(session)
        if refusal is not None:
            raise refusal

    def _failed_build(self, session: TaskSession) -> Refused | None:
        limit = session.limits.build_s
        try:
            worker, answer = self._load_candidate(session, "builder", limit)
        except WorkerDied as error:
            return Refused(Verdict.build_error, f"while it was built: {error}")
        except WorkerTimeout:
            return Refused(Verdict.timeout, f"building took more than {limit:g} s")
        with worker:
            if not answer.get("ok"):
                return _failed_load(answer)
            session.give_input(worker)
            worker.thaw()
            message = {"do": "run", "slots": [0], "seeds": session.oracle.call_seeds(1)}
            try:
                called = worker.request(message, limit)
            except WorkerDied:
                return None
            except WorkerTimeout:
                return Refused(Verdict.timeout, f"the first call took more than {limit:g} s")
        if called[:2] == b"FB":
            return Refused(Verdict.build_error, called[2:].decode(errors="replace"))
        return None

    def _load(self, session: TaskSession) -> tuple[Worker, str]:
        try:
            worker, answer = self._load_candidate(session, "candidate", session.limits.load_s)
        except WorkerDied as error:
            raise Refused(Verdict.runtime_error, f"while it was loaded: {error}") from None
        except WorkerTimeout:
            raise Refused(Verdict.timeout, f"loading took more than {session.limits.load_s:g} s") from None
        if not answer.get("ok"):
            worker.close()
            raise _failed_load(answer)
        return worker, str(answer.get("weights"))

    def _load_candidate(
        self, session: TaskSession, role: str, timeout_s: float
    ) -> tuple[Worker, dict[str, object]]:
        source, sha256 = self.candidate.source, self.candidate.sha256
        return session.load(role, source, "candidate", "ModelNew", timeout_s, sha256)

    def _time(self, session: TaskSession, worker: Worker) -> None:
        started = {mode: session.baseline(mode) for mode in self.baselines}
        baselines = {mode: baseline for mode, baseline in started.items() if baseline is not None}
        self.compile_s = {name: s for name, s in session.compile_s.items() if name in baselines}
        before = session.kernel_s
        device = session.target.device
        with session.pool.gate.closed(), _Stage(self, "time_s"), watched(device) as self.clocks:
            while self.timings is None:
                try:
                    self.timings = self._measure(session, worker, baselines)
                except BaselineFailed as failure:  # torch.compile's code does crash on some tasks
                    if failure.name == "eager":
                        raise
                    del baselines[failure.name]
        self.failed_baselines = {
            name: why for name, why in session.failed_baselines.items() if name in self.baselines
        }
        self.stages["kernel_s"] = session.kernel_s - before

    def _measure(self, session: TaskSession, worker: Worker, baselines: Mapping[str, Worker]) -> Timings:
        reloaded = lambda: self._load(session)[0]  # noqa: E731
        return measure(session, worker, reloaded, baselines, self.effort, self.to_beat)

    def _own_kernel_share(self, worker: Worker) -> float | None:
        try:
            worker.thaw()
            share = worker.ask({"do": "trace", "slot": 0}, 10 * self.evaluator.limits.call_s).get("share")
            worker.freeze()
        except (WorkerDied, WorkerTimeout):
            return None
        return float(share) if isinstance(share, (int, float)) and 0 <= share <= 1 else None

    def _timing(self) -> Timing | None:
        timings = self.timings
        if timings is None:
            return None

        def of(name: str) -> Interval | None:
            return timings.time_us(name) if name in timings.blocks else None

        first = timings.blocks["candidate"][0]
        return Timing(
            candidate_us=timings.time_us("candidate"),
            eager_us=timings.time_us("eager"),
            compile_us=of("compile"),
            max_autotune_us=of("max-autotune"),
            cuda_graphs_us=of("cuda-graphs"),
            calls_per_block=first.calls // first.messages,
            rounds=len(timings.empty_s),
            processes=len(set(timings.processes)),
            disturbed=len(timings.processes) - len(timings.undisturbed("candidate", "eager")),
            compile_s=self.compile_s,
            failed_baselines=self.failed_baselines,
            device_us=timings.device_us("candidate"),
            clocks=next(iter(self.clocks), None),
        )

    def _speedup(self) -> Speedup | None:
        timings = self.timings
        if timings is None:
            return None

        def over(name: str) -> Interval | None:
            return timings.speedup(name) if name in timings.blocks else None

        return Speedup(
            eager=over("eager"),
            compile=over("compile"),
            max_autotune=over("max-autotune"),
            cuda_graphs=over("cuda-graphs"),
            fastest=over(timings.fastest_baseline()),
        )


class _Stage:
    """Adds the time of a `with` block to a stage of the trial's."""

    def __init__(self, trial: _Trial, name: str) -> None:
        self.trial, self.name = trial, name

    def __enter__(self) -> None:
        self.started = self.trial.clock()

    def __exit__(self, *_: object) -> None:
        stages, took = self.trial.stages, self.trial.clock() - self.started
        stages[self.name] = stages.get(self.name, 0.0) + took


def _check_syntax(source: str) -> None:
    """What can be said without running anything. Raises Refused."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise Refused(Verdict.build_error, f"not valid Python: {error}{line}") from None


def _failed_load(answer: dict[str, object]) -> Refused:
    stage, text = str(answer.get("stage")), str(answer.get("error"))
    if stage == "memory":
        raise InfrastructureError(f"no memory for a worker: {text}", "reduce the sizes, or free some memory")
    if stage == "class":
        return Refused(Verdict.build_error, "the file defines no class ModelNew")
    if stage == "import" or answer.get("build"):
        return Refused(Verdict.build_error, text)
    return Refused(Verdict.runtime_error, f"ModelNew cannot be constructed: {text}")
