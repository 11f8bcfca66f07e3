"""One evaluation in the making: a candidate goes through build, verification and timing to its verdict."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import emulated
from kernelwright.kernelbench.evaluator.processes.answers import plain
from kernelwright.kernelbench.evaluator.processes.toolchain import make_wanted_header
from kernelwright.kernelbench.evaluator.processes.worker_handle import (
    NotStopped,
    Worker,
    WorkerDied,
    WorkerTimeout,
    remove,
    size_bytes,
)
from kernelwright.kernelbench.evaluator.protocol import ALL_BASELINES, Measurement
from kernelwright.kernelbench.evaluator.refusal import BaselineFailed, Refused
from kernelwright.kernelbench.evaluator.sanitizer import sanitize
from kernelwright.kernelbench.evaluator.session import COMPILER, TaskSession
from kernelwright.kernelbench.evaluator.sessions import Sessions
from kernelwright.kernelbench.evaluator.timing import summary
from kernelwright.kernelbench.evaluator.timing.clocks import watched
from kernelwright.kernelbench.evaluator.timing.measurement import measure
from kernelwright.kernelbench.evaluator.timing.plausibility import implausible, near_ceilings
from kernelwright.kernelbench.evaluator.timing.statistics import Timings
from kernelwright.kernelbench.evaluator.verification import verify
from kernelwright.kernelbench.languages import GPU_LANGUAGES
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import (
    CHECKED,
    Candidate,
    Correctness,
    Evaluation,
    GpuClocks,
    OperatorCost,
    Stages,
    Task,
    Verdict,
    Work,
)

_EMULATION = ("kernelwright.kernelbench.emulate.warm",)
# How the candidate got its weights, where it has not the reference's names.
_MATCHED = {
    "value": "weights matched by the values that both constructors drew",
    "shape": "weights matched by shape, in the order of definition: give them the reference's names",
    "replay": "weights as its constructor drew them, for none match by name, shape or value",
}
# A kernel that keeps what its constructor drew, or leaves out what is zero then, would pass.
_OF_ITS_OWN = (
    "not checked with other weights: its parameters match the reference's by neither name, shape nor value; "
    "name them as the reference does, and derive others from them in forward"
)
_CLOCKS_DIFFER = 0.1  # of the referee and a GPU, relatively, from which an evaluation says so
_LONGEST_UNKNOWN = 300  # letters
_MOST_HEADERS = 3  # precompiled ones, that one candidate may ask for


class Trial:
    """Evaluation of one candidate, stage by stage; results of a stage stay when a later one refuses."""

    def __init__(
        self,
        sessions: Sessions,
        task: Task,
        candidate: Candidate,
        measurement: Measurement,
    ) -> None:
        self.sessions, self.task, self.candidate, self.measurement = sessions, task, candidate, measurement
        self.baselines = [name for name in ALL_BASELINES if name in ("eager", *measurement.baselines)]
        self.clock = sessions.pool.timing_lock.clock
        self.correctness: Correctness | None = None
        self.timings: Timings | None = None
        self.work: Work | None = None  # of a call, known once it has been timed
        self.left: list[str] = []  # weights of the reference that the candidate has no room for
        self.share: float | None = None
        self.share_unknown = ""  # why, once it has been asked for
        self.needs_default_dtype: bool | None = None
        self.stages: dict[str, float] = {}
        self.compile_s: dict[str, float] = {}
        self.clocks: Sequence[GpuClocks] = ()
        self.launched: tuple[str, ...] = ()
        self.operators: tuple[OperatorCost, ...] = ()
        self.failed_baselines: dict[str, str] = {}
        self.same_code: dict[str, str] = {}

    def evaluation(self) -> Evaluation:
        started = self.clock()
        try:
            verdict, reason = self._verdict()
        except Refused as refusal:
            verdict, reason = refusal.verdict, refusal.reason
        self.stages["total_s"] = self.clock() - started
        paid, timings = verdict is Verdict.correct, self.timings
        target, times = self.sessions.target, None
        if timings is not None and self.work is not None:
            baselines = summary.Baselines(self.compile_s, self.failed_baselines, self.same_code)
            times = summary.timing(timings, self.clocks, baselines, self.work, target.ceilings)
        return Evaluation(
            task=self.task.id,
            candidate=self.candidate.sha256,
            target=target,
            verdict=verdict,
            reason=reason,
            correctness=self.correctness,
            timing=times,
            speedup=summary.speedup(timings) if timings is not None and paid else None,
            own_kernel_share=self.share,
            own_kernel_share_unknown=self.share_unknown,
            needs_default_dtype=self.needs_default_dtype,
            launched=self.launched,
            operators=self.operators,
            stages=Stages(**{name: round(value, 4) for name, value in self.stages.items()}),
            environment=self.sessions.environment,
        )

    def _verdict(self) -> tuple[Verdict, str]:
        _check_syntax(self.candidate.source)
        if self._of_gpu:
            emulated.refuse_unavailable(self.candidate, on_gpu=not self._without_gpu)
        session = self.sessions.open(self.task)
        self.sessions.make_room(session, 1 + len(self.baselines))
        if self._without_gpu:
            session.pool.import_first(_EMULATION)
        if "torch.compile" in self.candidate.source or self.candidate.language == "helion":
            session.pool.import_first(COMPILER)  # which takes longer than some limits of a call
        self._build(session)
        worker, weights = self._load(session)
        if weights in ("missing", "replay"):
            read = session.oracle.read_of(self.left)
            if read is None:  # so it may do without them
                worker.close()
                session.unread = sorted({*session.unread, *self.left})
                worker, weights = self._load(session)
                read = "an unknown one"
            if weights == "missing":
                worker.close()
                raise Refused(
                    Verdict.wrong_output, f"ModelNew lacks weights of the reference that it reads: {read}"
                )
        if weights == "replay" and session.vary_weights:
            # Fused or split weights: both sides keep what their constructors drew from the same seed.
            worker.close()
            session = self.sessions.open(self.task, vary_weights=False)
            worker, weights = self._load(session)
        with worker:
            with _Stage(self, "verify_s"), _naming(weights):
                correctness = verify(session, worker).model_copy(update={"weights": weights})
            if weights == "replay":
                self.correctness = correctness
                return Verdict.unmeasured, _OF_ITS_OWN
            if self._without_gpu:
                if self.measurement.operators:  # their time on this CPU says nothing of a GPU
                    costs = session.operators()
                    self.operators = tuple(cost.model_copy(update={"seconds": None}) for cost in costs)
                return self._launched_and_right(session, worker, correctness)
            self.correctness = correctness
            if (tool := self.sessions.protocol.sanitize) is not None:
                with _Stage(self, "verify_s"):
                    sanitize(session, self.candidate, tool)
            if not self.measurement.timed:
                return Verdict.unmeasured, f"{CHECKED}: {self.correctness.inputs_tried} inputs"
            wanted = self.sessions.protocol.own_kernels
            if wanted > 0:
                with self._load(session)[0] as other:  # a profiler may slow a process down for good
                    self._trace(session, worker, other)
                if self.share is None or self.share < wanted:
                    unknown = f"an unknown part ({self.share_unknown})"
                    known = unknown if self.share is None else f"{self.share:.0%}"
                    reason = f"right, but {known} of a call is in kernels of its own, not {wanted:.0%}"
                    return Verdict.unmeasured, reason
            self._time(session, worker)
            if wanted == 0:
                self._trace(session, worker, worker)
            if worker.alive:  # the trace may have ended it
                self.needs_default_dtype = self._needs_default_dtype(session, worker)
        assert self.timings is not None
        candidate_us = self.timings.time_us("candidate").median
        if near_ceilings(session, self.sessions.target, candidate_us):
            self.sessions.measure_again_once()
        if implausible(session, candidate_us) is not None:
            # The ceilings may have been measured while the machine was busy.
            session.target = self.sessions.measure_again()
            why = implausible(session, candidate_us)
            if why is not None:
                return Verdict.implausible, why
        but = (
            ", but for a few elements that another draw cleared"
            if (self.correctness.error or 0.0) > 1
            else ""
        )
        if (factor := self.timings.alone.factor) > 1:
            but += f"; a call that comes alone takes {factor:.1f} times as long, which counts"
        if self.timings.busy:
            but += "; timed on a busy machine: every round was disturbed"
        if (ratio := self.timings.clocks_differ) is not None and abs(ratio - 1) > _CLOCKS_DIFFER:
            but += f"; the referee's clock gives {ratio:.2f} times the time of CUDA events"
        but += "".join(f"; {note}" for note in (*session.oracle.unvaried, *session.oracle.unchecked))
        return Verdict.correct, f"{self.correctness.inputs_tried} inputs within the error budget{but}"

    @property
    def _without_gpu(self) -> bool:
        """True if its kernels are a GPU's, and there is none."""
        return self._of_gpu and self.sessions.target.device == "cpu"

    @property
    def _of_gpu(self) -> bool:
        return self.candidate.language in GPU_LANGUAGES

    def _launched_and_right(
        self, session: TaskSession, worker: Worker, correctness: Correctness
    ) -> tuple[Verdict, str]:
        """Verdict on right answers where kernels are emulated. Raises Refused where they say nothing."""
        try:
            seen = emulated.launches(worker, session.limits.call_s)
        except (WorkerDied, WorkerTimeout) as error:
            raise Refused(Verdict.runtime_error, f"after its calls: {error}") from None
        emulated.refuse_fallback(seen)
        self.correctness, self.launched = correctness, seen.kernels
        return Verdict.unmeasured, emulated.reason(self.candidate, seen.kernels)

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
            self._check_space(session)
            raise refusal
        if size_bytes(builds) > (most := session.limits.builds_bytes):
            remove(builds)
            raise Refused(Verdict.build_error, f"its build left more than {most >> 20} MiB of files")

    def _check_space(self, session: TaskSession) -> None:
        """Blame a failure on a full disk on nobody, unless the candidate is what has filled it.

        Raises InfrastructureError.
        """
        if session.pool.space_left:
            return
        remove(session.pool.builds_of(self.candidate.sha256))
        if not session.pool.space_left:
            raise InfrastructureError(
                f"no space is left in {session.pool.cache} or the temporary folder",
                "free some, or set KERNELWRIGHT_HOME and TMPDIR to folders with more",
            )

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
                return self._failed_load(answer)
            session.give_input(worker)
            message = {"do": "run", "slots": [0], "seeds": session.oracle.call_seeds(1)}
            try:
                worker.thaw()
                called = worker.request(message, limit)
                if self._without_gpu and called[:1] == b"D":
                    emulated.refuse_failed_build(emulated.launches(worker, limit))
            except Refused as refusal:
                return refusal
            except WorkerDied:
                return None
            except WorkerTimeout:
                return Refused(Verdict.timeout, f"the first call took more than {limit:g} s")
        if called[:2] == b"FU" and self._without_gpu:
            return Refused(Verdict.unmeasured, f"not checked: {called[2:].decode(errors='replace')}")
        if called[:2] == b"FB":
            return Refused(Verdict.build_error, called[2:].decode(errors="replace"))
        return None

    def _load(self, session: TaskSession) -> tuple[Worker, str]:
        try:
            worker, answer = self._load_candidate(session, "candidate", session.limits.load_s)
        except WorkerDied as error:
            raise Refused(error.verdict, f"while it was loaded: {error}") from None
        except WorkerTimeout:
            raise Refused(Verdict.timeout, f"loading took more than {session.limits.load_s:g} s") from None
        if not answer.get("ok"):
            worker.close()
            self._check_space(session)
            raise self._failed_load(answer)
        weights, left = str(answer.get("weights")), answer.get("left")
        self.left = [name for name in left if isinstance(name, str)] if isinstance(left, list) else []
        if weights not in ("name", "missing", *_MATCHED):
            worker.close()
            raise Refused(Verdict.cheating, "the worker's answer was tampered with")
        return worker, weights

    def _failed_load(self, answer: dict[str, object]) -> Refused:
        """Return the refusal of a failed load, by the candidate's account, where no kind is a gain."""
        stage, text = str(answer.get("stage")), str(answer.get("error"))
        if answer.get("unsupported") and self._without_gpu:
            return Refused(Verdict.unmeasured, f"not checked: {text}")
        if stage == "class":
            return Refused(Verdict.build_error, "the file defines no class ModelNew")
        if stage == "import" or answer.get("build"):
            return Refused(Verdict.build_error, text)
        return Refused(Verdict.runtime_error, f"ModelNew cannot be constructed: {text}")

    def _load_candidate(
        self, session: TaskSession, role: str, timeout_s: float
    ) -> tuple[Worker, dict[str, object]]:
        source, sha256 = self.candidate.source, self.candidate.sha256
        return session.load(role, source, "candidate", "ModelNew", timeout_s, sha256)

    def _time(self, session: TaskSession, worker: Worker) -> None:
        started = {mode: session.baseline(mode) for mode in self.baselines}
        self.same_code = {mode: twin for mode, twin in session.same_code.items() if mode in started}
        started |= {twin: session.baseline(twin) for twin in self.same_code.values()}
        baselines = {mode: baseline for mode, baseline in started.items() if baseline is not None}
        self.compile_s = {
            name: s for name, s in session.compile_s.items() if name in baselines or name in self.same_code
        }
        self.work, before = session.oracle.work, session.kernel_s
        device = session.target.device
        with session.pool.timing_lock.exclusive(), _Stage(self, "time_s"), watched(device) as self.clocks:
            while self.timings is None:
                try:
                    self.timings = self._measure(session, worker, baselines)
                except BaselineFailed as failure:  # torch.compile's code does crash on some tasks
                    if failure.name == "eager":
                        raise
                    del baselines[failure.name]
            if self.measurement.operators:
                self.operators = session.operators()
        self.failed_baselines = {
            name: why for name, why in session.failed_baselines.items() if name in self.baselines
        }
        self.stages["kernel_s"] = session.kernel_s - before

    def _measure(self, session: TaskSession, worker: Worker, baselines: Mapping[str, Worker]) -> Timings:
        reloaded = lambda: self._load(session)[0]  # noqa: E731
        effort = self.measurement.effort or self.sessions.protocol.effort
        return measure(session, worker, reloaded, baselines, effort, self.measurement.to_beat)

    def _trace(self, session: TaskSession, called: Worker, traced: Worker) -> None:
        """Set the share of own kernels: 0 where `called` has no code of the candidate's, else as it reports.

        A report: whatever goes wrong is no reason to lose the verdict.
        """
        builds = session.pool.builds_of(self.candidate.sha256)
        limit_s = 10 * self.sessions.limits.call_s
        try:
            if session.target.device == "cpu" and not called.has_code_from(builds):
                self.share = 0.0
                return
            traced.thaw()
            answer = traced.ask({"do": "trace", "slot": 0}, limit_s)
            traced.freeze()
        except WorkerDied as error:
            self.share_unknown = plain(f"the traced call ended its process: {error}", _LONGEST_UNKNOWN)
        except WorkerTimeout:
            self.share_unknown = f"the traced call took more than {limit_s:g} s"
        except NotStopped:
            self.share_unknown = "the process did not stop after the traced call"
        else:
            share, unknown = answer.get("share"), answer.get("unknown")
            if isinstance(share, (int, float)) and 0 <= share <= 1:
                self.share = float(share)
            else:
                self.share_unknown = plain(str(unknown or "the answer holds no share"), _LONGEST_UNKNOWN)

    def _needs_default_dtype(self, session: TaskSession, worker: Worker) -> bool | None:
        """Return True if it fails, or gives something else, under another default dtype; as it says."""
        try:
            session.give_input(worker)
            worker.thaw()
            limit = 2 * self.sessions.limits.call_s
            same = worker.ask({"do": "another_default_dtype"}, limit).get("same")
            worker.freeze()
        except (WorkerDied, WorkerTimeout):  # memory that was too small for what was written to it, say
            return True
        except NotStopped:
            return None
        return not same if isinstance(same, bool) else None


@contextlib.contextmanager
def _naming(weights: str) -> Iterator[None]:
    """Have a refusal in the block say how weights were matched, unless it was by name."""
    try:
        yield
    except Refused as refusal:
        if weights == "name" or refusal.verdict not in (Verdict.wrong_output, Verdict.nondeterministic):
            raise
        raise Refused(refusal.verdict, f"{refusal.reason} ({_MATCHED[weights]})") from None


class _Stage:
    """Adds the time of a `with` block to a stage of the trial's."""

    def __init__(self, trial: Trial, name: str) -> None:
        self.trial, self.name = trial, name

    def __enter__(self) -> None:
        self.started = self.trial.clock()

    def __exit__(self, *_: object) -> None:
        stages, took = self.trial.stages, self.trial.clock() - self.started
        stages[self.name] = stages.get(self.name, 0.0) + took


def _check_syntax(source: str) -> None:
    """Check what can be checked without running anything. Raises Refused."""
    try:
        parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = f"{error.msg} (line {error.lineno})" if isinstance(error, SyntaxError) else str(error)
        raise Refused(Verdict.build_error, f"not valid Python: {said}") from None
