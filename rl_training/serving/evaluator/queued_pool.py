"""A pool whose evaluations are requests of the server's queue: they take turns, last and are cached."""

from concurrent.futures import Future

from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.kernelbench.remote.wire import EvaluationRequest, EvaluationResult, SentTask
from kernelwright.profiling.records import Profile
from kernelwright.rl_training.environment.grader import Pool
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue


class QueuedPool:
    """Pool for a `Grader`, of one client of the server. `submit` raises QueueFull."""

    def __init__(self, queue: EvaluationQueue, pool: Pool, client: str) -> None:
        self._queue, self._pool, self._client = queue, pool, client

    def submit(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement(), client: str = ""
    ) -> Future[Evaluation]:
        """Return the evaluation to come."""
        request = EvaluationRequest.model_validate(
            {
                "task": SentTask.of(task),
                "source": candidate.source,
                "language": candidate.language,
                "effort": measurement.effort,
                "baselines": measurement.baselines,
                "timed": measurement.timed,
            }
        )
        found: Future[Evaluation] = Future()
        (accepted,) = self._queue.accept([request], self._client)

        def pass_on(result: EvaluationResult) -> None:
            if found.done():
                return
            if result.evaluation is not None:
                found.set_result(result.evaluation)
            elif result.no_verdict == "task":
                found.set_exception(TaskError(result.reason, "correct the task"))
            else:
                found.set_exception(InfrastructureError(result.reason or result.state, "ask again"))

        self._queue.when_ended(accepted.id, self._client, pass_on)
        return found

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return self._pool.rejected(task, candidate, reason)

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None:
        return self._pool.profile(task, candidate, evaluation)
