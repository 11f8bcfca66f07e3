"""Grading of requests: the task, candidate and reward scheme that one means, and what comes of them."""

import hashlib
import json
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue, ValidationError

from kernelwright.agent.llm.coder import objection
from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import InfrastructureError, TaskError, UsageError
from kernelwright.kernelbench.evaluator import BASELINES, EFFORTS, QUICK, Effort
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Work
from kernelwright.kernelbench.remote.wire import (
    EvaluationRequest,
    EvaluationResult,
    NoVerdictCause,
    ProfileRequest,
    SentTask,
    ServerInfo,
    StageSeconds,
    TargetMachine,
)
from kernelwright.profiling.records import Profile
from kernelwright.rl_training.environment.grader import Grader, Pool
from kernelwright.rl_training.outcome import Outcome
from kernelwright.rl_training.rewards.remeasure import BestSoFar
from kernelwright.rl_training.rewards.scheme import SCHEMES, Scheme
from kernelwright.rl_training.rewards.terms import Custom
from kernelwright.rl_training.serving.evaluator.tasks import TaskCatalogue

_AUTHOR = "request"
_SHOWN = 20_000  # characters of a reply that holds no file, kept as its source


class ServedPool(Pool, Protocol):
    """Protocol of `kernelwright.agent.profiled.ProfilingPool`, as far as a server needs it."""

    def work(self, task: Task) -> Work: ...

    def profile(
        self,
        task: Task,
        candidate: Candidate,
        evaluation: Evaluation,
        known: Profile | None = None,
        *,
        closely: bool = False,
    ) -> Profile | None: ...


@dataclass(frozen=True)
class PreparedRequest:
    """Meaning of a request on this server. `fault`: why a reply is no candidate; then it is not tried."""

    request: EvaluationRequest
    task: Task
    candidate: Candidate
    fault: str
    scheme: Scheme | None
    effort: Effort | None
    digest: str  # of everything that the result depends on


class RequestGrader:
    """Thread-safe. `patience_s`: time for a verdict once an evaluation has begun, its turns included."""

    def __init__(
        self, pool: ServedPool, info: ServerInfo, tasks: TaskCatalogue, patience_s: float = 3600.0
    ) -> None:
        self.pool, self.info, self.tasks = pool, info, tasks
        self._patience_s = patience_s
        self._best = BestSoFar()
        self.machine = TargetMachine(device=info.target.device, fingerprint=info.target.fingerprint)
        self._server = hashlib.sha256(
            json.dumps(
                [
                    info.version,
                    info.protocol.model_dump_json(),
                    info.target.device,
                    info.target.fingerprint.model_dump_json(),
                    info.target.chips,
                ]
            ).encode()
        ).hexdigest()

    def prepared(self, request: EvaluationRequest) -> PreparedRequest:
        """Return what a request means. Raises NotAllowedError, UsageError."""
        task, scheme = self.tasks.find(request.task), scheme_asked(request.scheme)
        candidate, fault = _candidate(request)
        effort = EFFORTS[request.effort] if isinstance(request.effort, str) else request.effort
        if effort is None and scheme is not None:
            effort = QUICK
        parts = [
            self._server,
            task.id,
            task.sha256,
            candidate.sha256,
            candidate.language,
            fault,
            scheme.model_dump_json() if scheme is not None else None,
            effort.model_dump_json() if effort is not None else None,
            request.model_dump(mode="json", include={"baselines", "to_beat", "operators", "timed"}),
        ]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return PreparedRequest(request, task, candidate, fault, scheme, effort, digest)

    def __call__(self, asked: PreparedRequest) -> EvaluationResult:
        """Return what came of a request, without its id and with no time in the queue.

        Raises InfrastructureError if the evaluator's machinery failed; then it may be tried again.
        """
        began = time.monotonic()
        grader = self._grader(asked)
        try:
            if asked.fault:
                found: Evaluation | Outcome = self.pool.rejected(asked.task, asked.candidate, asked.fault)
            elif grader is not None and asked.effort is not None:
                first = grader.submit(asked.task, asked.candidate, asked.effort)
                found = grader.evaluation(asked.task, asked.candidate, first)
            else:
                found = self._evaluated(asked)
        except TaskError as error:
            return self.without_verdict(asked.task.id, "task", error.message)
        except TimeoutError:
            return self.without_verdict(asked.task.id, "patience", "no verdict came in time")
        except CancelledError:
            raise InfrastructureError(
                "the pool of evaluations was closed", "start the server again"
            ) from None
        if isinstance(found, Outcome):
            if found.failure == "evaluator":
                raise InfrastructureError(found.reason, "see the server's log")
            return self.without_verdict(asked.task.id, found.failure or "evaluator", found.reason)
        reward, terms = None, {}
        if grader is not None:
            _, graded, _ = grader.graded(asked.task, asked.candidate, found, usable=not asked.fault)
            reward, terms = graded.value, {name: term.value for name, term in graded.terms.items()}
        stages = found.stages
        return EvaluationResult(
            id="",
            state="done",
            task=asked.task.id,
            candidate=asked.candidate.sha256,
            verdict=found.verdict,
            reason=found.reason,
            reward=reward,
            terms=terms,
            speedup=found.speedup,
            own_kernel_share=found.own_kernel_share,
            seconds=StageSeconds(
                queue=max(0.0, time.monotonic() - began - stages.total_s),
                build=stages.build_s,
                verify=stages.verify_s,
                time=stages.time_s,
            ),
            target=self.machine,
            evaluation=found,
        )

    def work(self, asked: SentTask) -> Work:
        """Return the work of a task. Raises NotAllowedError, UsageError, InfrastructureError."""
        return self.pool.work(self.tasks.find(asked))

    def profile(self, asked: ProfileRequest) -> Profile | None:
        """Return what profilers read of a candidate; None if it was not timed.

        Raises NotAllowedError, UsageError, InfrastructureError.
        """
        task = self.tasks.find(asked.task)
        candidate = Candidate(
            source=asked.source,
            language=asked.language,
            author=_AUTHOR,
            schedule=asked.schedule,
            kernels=asked.kernels,
        )
        if (asked.evaluation.task, asked.evaluation.candidate) != (task.id, candidate.sha256):
            raise UsageError("the evaluation is of another task or candidate", "send its own")
        try:
            known = Profile.model_validate_json(asked.known) if asked.known is not None else None
        except ValidationError:
            raise UsageError("the known profile is none of this version", "leave it out") from None
        return self.pool.profile(task, candidate, asked.evaluation, known, closely=asked.closely)

    def without_verdict(self, task: str, cause: NoVerdictCause, reason: str) -> EvaluationResult:
        """Return the result of a request that no verdict came of."""
        return EvaluationResult(
            id="",
            state="cancelled" if cause == "cancelled" else "failed",
            task=task,
            reason=reason,
            no_verdict=cause,
            target=self.machine,
        )

    def _evaluated(self, asked: PreparedRequest) -> Evaluation:
        measurement = asked.request.measurement(BASELINES, asked.effort)
        found = self.pool.submit(asked.task, asked.candidate, measurement, client=asked.task.id)
        try:
            return found.result(self._patience_s)
        except TimeoutError:
            found.cancel()
            raise

    def _grader(self, asked: PreparedRequest) -> Grader | None:
        if asked.scheme is None:
            return None
        effort = asked.effort or QUICK
        return Grader(
            self.pool,
            asked.scheme,
            effort=effort,
            again=EFFORTS["thorough" if effort == EFFORTS["full"] else "full"],
            patience_s=self._patience_s,
            best=self._best,
        )


def scheme_asked(asked: str | dict[str, JsonValue] | None) -> Scheme | None:
    """Return the scheme of a request: one by name, or its content; never a file. Raises UsageError."""
    if asked is None:
        return None
    if isinstance(asked, str):
        if asked not in SCHEMES:
            raise UsageError(
                f"unknown reward scheme '{asked}'", f"use one of {', '.join(SCHEMES)}, or its terms"
            )
        return SCHEMES[asked]
    try:
        scheme = Scheme.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise UsageError(
            f"invalid scheme: {where}: {first['msg']}", "see docs/training.md for the terms"
        ) from None
    if any(isinstance(term, Custom) for term in scheme.terms):  # it would run what the request names
        raise UsageError(
            "invalid scheme: a request names no function to run here",
            "compute that term from the result, where it is asked for",
        )
    return scheme


def _candidate(request: EvaluationRequest) -> tuple[Candidate, str]:
    """Return the candidate of a request, and why it is not worth trying."""
    fault = ""
    if request.source is not None:
        source = request.source
    else:
        assert request.reply is not None
        try:
            source = candidate_source(request.reply)
        except ReplyUnusable as error:
            source, fault = request.reply[:_SHOWN], str(error)
    language = request.language or language_of(source)
    if request.reply is not None and request.language is not None and not fault:
        fault = objection(source, request.language, ())
    return Candidate(source=source, language=language, author=_AUTHOR), fault
