"""A cheap call before a run: whether a model can be used, and what its endpoint accepts, in seconds.

What it is refused is learnt for the run (request.py). An endpoint that is busy is asked no further: the run
has more patience.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from kernelwright.agent.llm.endpoint.client import OpenAIModel
from kernelwright.agent.llm.endpoint.prices import Priced, Prices
from kernelwright.agent.llm.endpoint.request import Requests
from kernelwright.agent.llm.model import (
    Completion,
    Endpoint,
    EndpointUnusable,
    Message,
    ModelCall,
    Sampling,
    Usage,
)
from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.records import Capability

_PATIENCE_S = 10.0
_CALL_S = 120.0
_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}
_MESSAGES = (
    Message(role="system", content="Answer with a JSON object and nothing else."),
    Message(role="user", content='Answer with {"ready": true}.'),
)
_TOOL: dict[str, JsonValue] = {
    "type": "function",
    "function": {
        "name": "ready",
        "description": "Say that you are ready.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def unusable(endpoint: Endpoint, error: EndpointUnusable) -> MissingPrerequisite:
    """Return the error of a command that cannot go on without its models."""
    address = endpoint.url or "https://api.openai.com/v1"
    return MissingPrerequisite(
        f"the endpoint {address} cannot be used: {error}",
        "check OPENAI_BASE_URL (most end in /v1) and OPENAI_API_KEY; kernelwright doctor --model tries them",
    )


@dataclass(frozen=True)
class Preflight:
    """Requests as they are accepted, by model, and the calls that found out."""

    requests: dict[str, Requests]
    calls: tuple[tuple[ModelCall, Completion], ...]


def preflight(endpoint: Endpoint, samplings: Sequence[Sampling], say: Callable[[str], None]) -> Preflight:
    """Make one call for each model; `say` is told what is learnt. Raises EndpointUnusable."""
    return asyncio.run(_preflight(endpoint, samplings, say))


def capabilities(model: str, endpoint: Endpoint) -> tuple[Capability, ...]:
    """Try a model with every parameter that a run may send.

    Raises MissingPrerequisite if it cannot be used.
    """
    sampling = Sampling(model=model, temperature=1.0, reasoning_effort="low")
    try:
        found = preflight(endpoint, [sampling], lambda line: None)
        tools = preflight(replace(endpoint, extra={"tools": [_TOOL]}), [sampling], lambda line: None)
    except EndpointUnusable as error:
        raise unusable(endpoint, error) from None
    if not found.calls:
        raise MissingPrerequisite(f"the endpoint of {model} is busy", "try again later")
    [(call, answer)], requests = found.calls, found.requests[model]
    price = Prices({}, listed=True, address=endpoint.url).of(model)
    return tuple(_capabilities(call, answer, requests, tools, price))


def _capabilities(
    call: ModelCall, answer: Completion, requests: Requests, tools: Preflight, price: Priced | None
) -> Iterator[Capability]:
    model, body = call.sampling.model, requests.body(call)
    used = answer.usage
    counted = "estimated" if used.estimated else "counted"
    tokens = f"{used.prompt_tokens} and {used.completion_tokens} tokens, {counted}"
    yield Capability(name="answer", on=True, why=f"in {answer.seconds:.1f} s: {tokens}")
    yield Capability(name="streaming", on=body["stream"], why="" if body["stream"] else "refused: one piece")
    yield Capability(
        name="token counts", on=not used.estimated, why="not sent: estimated" if used.estimated else ""
    )
    for name in ("temperature", "reasoning_effort"):
        yield Capability(name=name, on=name in body, why="" if name in body else "refused: left out")
    schema = body.get("response_format", {}).get("type")
    yield Capability(name="response_format", on=schema is not None, why=schema or "refused: left out")
    system = body["messages"][0]["role"] == "system"
    yield Capability(name="system message", on=system, why="" if system else "refused: put before the prompt")
    limit = next((name for name in ("max_completion_tokens", "max_tokens") if name in body), None)
    yield Capability(
        name="limit of replies", on=limit is not None, why=f"{limit} {body[limit]}" if limit else "refused"
    )
    context = requests.context
    yield Capability(
        name="context length", on=context is not None, why=f"{context} tokens" if context else "not listed"
    )
    accepts = bool(tools.calls) and "tools" in tools.requests[model].body(call)
    called = accepts and tools.calls[0][1].finish == "tool_calls"
    yield Capability(
        name="tools", on=accepts, why="called" if called else "accepted, not called" if accepts else "refused"
    )
    million = Usage(prompt_tokens=1_000_000, completion_tokens=0)
    if price is not None:
        prompt, completion = (
            price.usd(million),
            price.usd(Usage(prompt_tokens=0, completion_tokens=1_000_000)),
        )
        why = f"${prompt:g} and ${completion:g} per million tokens of prompt and completion"
    else:
        why = "unknown: give --price IN/OUT to limit dollars"
    yield Capability(name="price", on=price is not None, why=why)


async def _preflight(
    endpoint: Endpoint, samplings: Sequence[Sampling], say: Callable[[str], None]
) -> Preflight:
    patience_s, call_s = min(endpoint.patience_s, _PATIENCE_S), min(endpoint.call_s, _CALL_S)
    client = OpenAIModel(replace(endpoint, patience_s=patience_s, call_s=call_s), say=say)
    calls = []
    try:
        for sampling in {sampling.model: sampling for sampling in reversed(samplings)}.values():
            await client.read_context(sampling.model)
            call = ModelCall(
                role="preflight", task=None, messages=_MESSAGES, sampling=sampling, reply_schema=_SCHEMA
            )
            try:
                calls.append((call, await client.complete(call)))
            except EndpointUnusable as error:
                if error.status is None or not (error.status in (408, 409, 429) or error.status >= 500):
                    raise
                say(f"{sampling.model}: the endpoint is busy ({error}); the run waits for it")
    finally:
        await client.close()
    return Preflight(client.known, tuple(calls))
