"""Routes of a server of evaluations. GET /docs shows them with their records, /openapi.json to programs."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from fastapi import FastAPI, HTTPException, Response
from fastapi.concurrency import run_in_threadpool

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Work
from kernelwright.kernelbench.remote.wire import (
    ENDED,
    EvaluationRequest,
    EvaluationResult,
    Problem,
    ProfileRequest,
    SentTask,
    ServerHealth,
    ServerInfo,
    TaskList,
)
from kernelwright.profiling.records import Profile
from kernelwright.rl_training.serving.evaluator.batches import batch_routes, without_record
from kernelwright.rl_training.serving.evaluator.dialects import dialect_routes
from kernelwright.rl_training.serving.evaluator.grading import RequestGrader
from kernelwright.rl_training.serving.evaluator.guards import Client, Full, Wait, add_errors
from kernelwright.rl_training.serving.evaluator.metrics import ServerMetrics
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue
from kernelwright.rl_training.serving.evaluator.rollouts import Rollouts, rollout_routes

MOST_BYTES = 16 << 20  # of a request's body
_INSPECTING = 64  # tasks and candidates that are looked at
_TITLE = "kernelwright: evaluations and rewards"


def _responses(said: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Describe answers that are a `Problem`, whatever else a route answers."""
    content = {"application/json": {"schema": Problem.model_json_schema()}}
    return {status: {"description": text, "content": content} for status, text in said.items()}


_ERRORS = _responses({401: "The token is missing or wrong.", 422: "The request is invalid."})
_OF_IDS = _responses({404: "There is none with this id."})
_OF_REQUESTS = _responses(
    {
        400: "The body is no text in UTF-8.",
        403: "The task is not allowed.",
        409: "The key names another request.",
        429: "The queue is full; Retry-After has the seconds to wait.",
    }
) | {413: {"description": "The body is too large.", "content": {"text/plain": {}}}}


@dataclass(frozen=True)
class Service:
    """Parts that a server's routes work with. Without `tokens` everybody may ask."""

    info: ServerInfo
    queue: EvaluationQueue
    grader: RequestGrader
    metrics: ServerMetrics
    rollouts: Rollouts
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
    app.state.tokens = service.tokens
    queue = service.queue
    inspecting = anyio.CapacityLimiter(_INSPECTING)  # threads of their own: these calls take long
    add_errors(app)

    @app.get("/health", tags=["server"])
    async def health() -> ServerHealth:
        """Tell that the server works."""
        return ServerHealth(version=service.info.version)

    @app.get("/metrics", tags=["server"], response_class=Response)
    async def metrics(who: Client) -> Response:
        """Return counts and times in the format of Prometheus."""
        return Response(service.metrics.text(queue.waiting, queue.running), media_type=service.metrics.KIND)

    @app.get("/v1/server", tags=["server"])
    async def server(who: Client) -> ServerInfo:
        """Tell what is evaluated on."""
        return service.info

    @app.get("/v1/tasks", tags=["tasks"])
    async def tasks(who: Client) -> TaskList:
        """List the tasks that may be named."""
        return service.grader.tasks.listed

    @app.post("/v1/work", tags=["tasks"], responses=_OF_REQUESTS)
    async def work(task: SentTask, who: Client) -> Work:
        """Tell what a call of a task's reference must move and compute."""
        return await anyio.to_thread.run_sync(service.grader.work, task, limiter=inspecting)

    @app.post("/v1/profiles", tags=["evaluations"], responses=_OF_REQUESTS)
    async def profile(request: ProfileRequest, who: Client) -> Profile:
        """Read a candidate that was timed with the server's profilers."""
        read = partial(service.grader.profile, request)
        found = await anyio.to_thread.run_sync(read, limiter=inspecting)
        if found is None:
            raise UsageError("a candidate that was not timed has no profile", "send one that was")
        return found

    @app.post("/v1/evaluations", status_code=202, tags=["evaluations"], responses=_OF_REQUESTS)
    async def evaluate(
        request: EvaluationRequest, response: Response, who: Client, wait: Wait = 0.0, full: Full = False
    ) -> EvaluationResult:
        """Evaluate a candidate: 202 with its id, or 200 with the result if there is one in time."""
        (found,) = await run_in_threadpool(queue.accept, [request], who)
        return await answer(found, response, who, wait, full)

    @app.get("/v1/evaluations/{id}", tags=["evaluations"], responses=_OF_IDS)
    async def evaluation(
        id: str, response: Response, who: Client, wait: Wait = 0.0, full: Full = False
    ) -> EvaluationResult:
        """Tell the state of an evaluation: 200 with the result, or 202."""
        return await answer(_known(queue.find(id, who)), response, who, wait, full)

    @app.delete("/v1/evaluations/{id}", tags=["evaluations"], responses=_OF_IDS)
    async def cancel(id: str, who: Client) -> EvaluationResult:
        """Give an evaluation up; one that has ended stays as it is."""
        return without_record(_known(await run_in_threadpool(queue.cancel, id, who)))

    async def answer(
        found: EvaluationResult, response: Response, who: str, wait: float, full: bool
    ) -> EvaluationResult:
        if wait and found.state not in ENDED:
            found = _known(await queue.wait(found.id, who, wait))
        response.status_code = 200 if found.state in ENDED else 202
        return found if full else without_record(found)

    app.include_router(batch_routes(queue), responses=_OF_REQUESTS | _OF_IDS)
    app.include_router(dialect_routes(queue), responses=_OF_REQUESTS)
    app.include_router(rollout_routes(service.rollouts), responses=_OF_REQUESTS | _OF_IDS)
    return app


def _known(found: EvaluationResult | None) -> EvaluationResult:
    if found is None:
        raise HTTPException(404, "no such evaluation")
    return found
