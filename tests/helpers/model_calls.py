"""Calls of a model at a fake endpoint, and what comes of them."""

import asyncio
from typing import Any

from kernelwright.agent.llm.endpoint.client import OpenAIModel
from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.agent.llm.model import Completion, Endpoint, Message, ModelCall, ModelError, Sampling


def call(text: str = "hello", **changes: object) -> ModelCall:
    sampling = Sampling(model="m", max_tokens=1000)
    messages = (Message(role="system", content="You write kernels."), Message(role="user", content=text))
    return ModelCall(role="coder", task="t", messages=messages, sampling=sampling).model_copy(update=changes)


def completed(server: FakeEndpoint, asked: ModelCall | None = None, **limits: Any) -> Completion:
    return many(server, [asked or call()], **limits)[0]


def many(server: FakeEndpoint, calls: list[ModelCall], **limits: Any) -> list[Completion]:
    async def ask() -> list[Completion]:
        model = OpenAIModel(Endpoint(base_url=server.base_url, **{"backoff_s": 0.02, **limits}))  # type: ignore[arg-type]
        try:
            return await asyncio.gather(*(model.complete(each) for each in calls))
        finally:
            await model.close()

    return asyncio.run(ask())


def in_turn(server: FakeEndpoint, calls: list[ModelCall], answered: bool = False) -> list[Any]:
    """Return the completions and errors of calls made one after the other by one client."""

    async def ask() -> list[Any]:
        endpoint = Endpoint(base_url=server.base_url, backoff_s=0.02, patience_s=2.0)
        model = OpenAIModel(endpoint, answered=answered)
        found: list[Any] = []
        for each in calls:
            try:
                found.append(await model.complete(each))
            except ModelError as error:
                found.append(error)
        await model.close()
        return found

    return asyncio.run(ask())
