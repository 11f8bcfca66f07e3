"""Routes in the forms of trainers that know a reward server by its URL alone.

    OpenRLHF   --remote_rm_url  http://any:TOKEN@gpu7:8900/v1/openrlhf?scheme=kevin
    slime      --rm-type remote_rm --rm-url http://any:TOKEN@gpu7:8900/v1/slime?scheme=kevin

The label of a row is its task: an id, or the JSON of a `SentTask`. Neither form can say that there is no
verdict, and both trainers ask again after an error: so a reward that is not known, or not yet, is 503 and
never a number.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, ValidationError

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Language, Verdict
from kernelwright.kernelbench.remote.wire import (
    EffortOf,
    EvaluationRequest,
    EvaluationResult,
    Reply,
    SentTask,
)
from kernelwright.rl_training.serving.evaluator.guards import Client, RewardUnknown
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue

_WAIT_S = 100.0  # less than the 120 s and 180 s after which they ask again
Row = Annotated[str, Field(max_length=1_000_000)]
SchemeName = Annotated[str, Query(description="Scheme of the reward.", max_length=100)]


class OpenRlhfRequest(BaseModel):
    """Request of OpenRLHF: prompts with their replies, prompts, and labels. Replies may be of any length."""

    query: list[str] = Field(min_length=1, max_length=1024)
    prompts: list[Row]
    labels: list[Row]


class OpenRlhfRewards(BaseModel):
    """Rewards in the order of the queries; `scores` are 1 for right kernels, for its dynamic filtering."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


class SlimeRequest(BaseModel):
    """Request of slime: one sample."""

    prompt: Row | list[dict[str, object]] = ""
    response: Reply
    label: Row


def dialect_routes(queue: EvaluationQueue) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["trainers"])

    @routes.post("/v1/openrlhf", responses={503: {"description": "A reward is not known, or not yet."}})
    async def openrlhf(
        asked: OpenRlhfRequest,
        who: Client,
        scheme: SchemeName = "log-speedup",
        effort: EffortOf | None = None,
        language: Language | None = None,
    ) -> OpenRlhfRewards:
        """Return rewards as OpenRLHF's --remote_rm_url wants them."""
        if not len(asked.query) == len(asked.prompts) == len(asked.labels):
            raise UsageError("query, prompts and labels differ in length", "give one of each for every reply")
        requests = [
            _request(label, query.removeprefix(prompt), scheme, effort, language)
            for query, prompt, label in zip(asked.query, asked.prompts, asked.labels, strict=True)
        ]
        found = await graded(requests, who)
        right = [float(each.verdict is Verdict.correct and (each.reward or 0) > 0) for each in found]
        return OpenRlhfRewards(
            rewards=[each.reward for each in found if each.reward is not None],
            scores=right,
            extra_logs={"correct": right},
        )

    @routes.post("/v1/slime", responses={503: {"description": "The reward is not known, or not yet."}})
    async def slime(
        asked: SlimeRequest,
        who: Client,
        scheme: SchemeName = "log-speedup",
        effort: EffortOf | None = None,
        language: Language | None = None,
    ) -> float:
        """Return a reward as slime's --rm-type remote_rm wants it."""
        (found,) = await graded([_request(asked.label, asked.response, scheme, effort, language)], who)
        assert found.reward is not None
        return found.reward

    async def graded(requests: Sequence[EvaluationRequest], who: str) -> list[EvaluationResult]:
        """Return results that all have a reward. Raises RewardUnknown."""
        accepted = await asyncio.to_thread(queue.accept, requests, who)
        waits = [queue.wait(each.id, who, _WAIT_S) for each in accepted]
        found = [each for each in await asyncio.gather(*waits) if each is not None]
        for each in found:
            if each.reward is None:
                raise RewardUnknown(each.reason or "no verdict yet")
        return found

    return routes


def _request(
    label: str, reply: str, scheme: str, effort: EffortOf | None, language: Language | None
) -> EvaluationRequest:
    try:
        task = SentTask.model_validate_json(label) if label.startswith("{") else label
        return EvaluationRequest(task=task, reply=reply, scheme=scheme, effort=effort, language=language)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"invalid label or reply: {first['msg']}",
            "the label is a task's id, or the JSON of its name and source",
        ) from None
