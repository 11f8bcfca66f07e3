"""Routes of a server of evaluations. GET /docs shows them with their records, /openapi.json to programs."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Response
from fastapi.concurrency import run_in_threadpool

from kernelwright.kernelbench.records import Work
from kernelwright.kernelbench.remote.wire import (
    ENDED,
    EvaluationRequest,
    EvaluationResult,
    Problem,
    ServerHealth,
    ServerInfo,
    TaskList,
    TaskText,
)
from kernelwright.rl_training.serving.evaluator.grading import RequestGrader
from kernelwright.rl_training.serving.evaluator.guards import BearerTokens, add_errors
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue

MOST_BYTES = 16 << 20  # of a request's body
MOST_WAIT_S = 600.0  # that a request may wait for a result
_TITLE = "kernelwright: evaluations and rewards"
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (401, 403, 404, 409, 413, 422, 429)
}
Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_S, description="Seconds to wait for the result.")]
Full = Annotated[bool, Query(description="Also give the whole record of the evaluation.")]


@dataclass(frozen=True)
class Service:
    """What a server's routes work with."""

    info: ServerInfo
    queue: EvaluationQueue
    grader: RequestGrader
    tokens: tuple[str, ...] = field(repr=False, default=())


def application(service: Service) -> FastAPI:
    """Return the ASGI application of a service."""
    app = FastAPI(
        title=_TITLE,
        version=service.info.version,
        responses=_ERRORS,
        redoc_url=None,
        max_body_size=MOST_BYTES,
    )
    who = Depends(BearerTokens(service.tokens))
    Client = Annotated[str, who]
    queue = service.queue
    add_errors(app)

    @app.get("/health", tags=["server"])
    async def health() -> ServerHealth:
        """Tell that the server works."""
        return ServerHealth(version=service.info.version)

    @app.get("/v1/server", tags=["server"])
    async def server(client: Client) -> ServerInfo:
        """Tell what is evaluated on."""
        return service.info

    @app.get("/v1/tasks", tags=["tasks"])
    async def tasks(client: Client) -> TaskList:
        """List the tasks that may be named."""
        return service.grader.tasks.listed

    @app.post("/v1/work", tags=["tasks"])
    def work(task: TaskText, client: Client) -> Work:
        """Tell what a call of a task's reference must move and compute."""
        return service.grader.work(task)

    @app.post("/v1/evaluations", status_code=202, tags=["evaluations"])
    async def evaluate(
        request: EvaluationRequest, response: Response, client: Client, wait: Wait = 0.0, full: Full = False
    ) -> EvaluationResult:
        """Evaluate a candidate: 202 with its id, or 200 with the result if there is one in time."""
        (found,) = await run_in_threadpool(queue.accept, [request], client)
        return await answer(found, response, client, wait, full)

    @app.get("/v1/evaluations/{id}", tags=["evaluations"])
    async def evaluation(
        id: str, response: Response, client: Client, wait: Wait = 0.0, full: Full = False
    ) -> EvaluationResult:
        """Tell the state of an evaluation: 200 with the result, or 202."""
        return await answer(_known(queue.find(id, client)), response, client, wait, full)

    @app.delete("/v1/evaluations/{id}", tags=["evaluations"])
    async def cancel(id: str, client: Client) -> EvaluationResult:
        """Give an evaluation up; one that has ended stays as it is."""
        return _short(_known(await run_in_threadpool(queue.cancel, id, client)))

    async def answer(
        found: EvaluationResult, response: Response, client: str, wait: float, full: bool
    ) -> EvaluationResult:
        if wait and found.state not in ENDED:
            found = _known(await queue.wait(found.id, client, wait))
        response.status_code = 200 if found.state in ENDED else 202
        return found if full else _short(found)

    return app


def _known(found: EvaluationResult | None) -> EvaluationResult:
    if found is None:
        raise HTTPException(404, "no such evaluation")
    return found


def _short(result: EvaluationResult) -> EvaluationResult:
    return result.model_copy(update={"evaluation": None})
