"""Routes of batches, and of server-sent events on evaluations and batches."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from kernelwright.kernelbench.remote.wire import ENDED, BatchRequest, BatchResult, EvaluationResult
from kernelwright.rl_training.serving.evaluator.guards import Client, Full, Wait
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue


def batch_routes(queue: EvaluationQueue) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()

    @routes.post("/v1/batches", status_code=202, tags=["evaluations"])
    async def evaluate_batch(
        batch: BatchRequest, response: Response, who: Client, wait: Wait = 0.0, full: Full = False
    ) -> BatchResult:
        """Evaluate several candidates, accepted together or not at all."""
        id = uuid.uuid4().hex
        await run_in_threadpool(queue.accept, batch.evaluations, who, id)
        return await answer(id, who, response, wait, full)

    @routes.get("/v1/batches/{id}", tags=["evaluations"])
    async def batch(
        id: str, response: Response, who: Client, wait: Wait = 0.0, full: Full = False
    ) -> BatchResult:
        """Tell the state of a batch."""
        return await answer(id, who, response, wait, full)

    def one(id: str, who: Client) -> list[str]:
        """Check the id before the stream begins, whose status is 200."""
        if queue.find(id, who) is None:
            raise HTTPException(404, "no such evaluation")
        return [id]

    def of_batch(id: str, who: Client) -> list[str]:
        return [each.id for each in known(id, who)]

    @routes.get("/v1/evaluations/{id}/events", response_class=EventSourceResponse, tags=["evaluations"])
    async def events(
        who: Client, ids: Annotated[list[str], Depends(one)]
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Stream the states of an evaluation until it has ended."""
        async for event in changes(ids, who):
            yield event

    @routes.get("/v1/batches/{id}/events", response_class=EventSourceResponse, tags=["evaluations"])
    async def batch_events(
        who: Client, ids: Annotated[list[str], Depends(of_batch)]
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Stream the states of a batch's evaluations until all have ended."""
        async for event in changes(ids, who):
            yield event

    async def changes(ids: list[str], who: str) -> AsyncGenerator[ServerSentEvent, None]:
        async with aclosing(queue.changes(ids, who)) as found:
            async for each in found:
                yield ServerSentEvent(
                    event=each.state, id=each.id, raw_data=without_record(each).model_dump_json()
                )

    async def answer(id: str, who: str, response: Response, wait: float, full: bool) -> BatchResult:
        found = known(id, who)
        if wait:
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(wait),
                    aclosing(queue.changes([each.id for each in found], who)) as changed,
                ):
                    async for _ in changed:
                        pass
            found = known(id, who)
        counts = dict.fromkeys(("queued", "running", *ENDED), 0)
        for each in found:
            counts[each.state] += 1
        done = counts["queued"] + counts["running"] == 0
        response.status_code = 200 if done else 202
        return BatchResult.model_validate(
            {
                "id": id,
                "state": "done" if done else "running",
                "counts": counts,
                "evaluations": [each if full else without_record(each) for each in found],
            }
        )

    def known(id: str, who: str) -> list[EvaluationResult]:
        found = queue.batch(id, who)
        if not found:
            raise HTTPException(404, "no such batch")
        return found

    return routes


def without_record(result: EvaluationResult) -> EvaluationResult:
    """Return a result without the whole record of its evaluation."""
    return result.model_copy(update={"evaluation": None})
