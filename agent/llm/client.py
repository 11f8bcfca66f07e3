"""A model behind an OpenAI-compatible endpoint: streamed, retried with patience, within its rates.

Refused connections, timeouts, 408, 409, 429, 5xx and answers that break off are retried after the pause that
the endpoint asks for (`retry-after-ms`, `Retry-After`) or an exponential one with jitter, until `patience_s`
have passed since the first attempt, or three answers have broken off, since those are paid for. Everything
else is ModelRefused at once, or ModelAbsent if the endpoint does not accept our credentials or the model.
"""

import asyncio
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import openai
from aiolimiter import AsyncLimiter
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from kernelwright.agent.llm.model import (
    NO_TOKENS,
    Completion,
    Endpoint,
    ModelAbsent,
    ModelCall,
    ModelRefused,
    Usage,
    estimated_tokens,
)
from kernelwright.agent.llm.tool_calls import ToolCallPieces

_BURST_S = 10.0  # of a rate, that may be used at once
_MOST_BROKEN = 3  # answers of one call, each of which has to be paid for
_LONGEST_PAUSE_S = 300.0  # that an endpoint may ask for
_LONGEST_BACKOFF_S = 60.0
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


class OpenAIModel:
    """A ChatModel. Use it in one event loop, and close it there."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Create a client. Raises MissingPrerequisite, as `Endpoint.require` does."""
        endpoint.require()
        self.endpoint = endpoint
        timeout = openai.Timeout(endpoint.call_s, read=endpoint.silence_s, connect=30.0)
        # Servers of one's own want no key; the client wants some text. It is not to retry by itself.
        self._client = openai.AsyncOpenAI(
            api_key=endpoint.key or "none", base_url=endpoint.url, timeout=timeout, max_retries=0
        )
        self._backoff = wait_random_exponential(multiplier=endpoint.backoff_s, max=_LONGEST_BACKOFF_S)
        self._requests = _limiter(endpoint.requests_a_minute)
        self._tokens = _limiter(endpoint.tokens_a_minute)
        host = self._client.base_url.host
        self._is_openai = host.endswith(("openai.com", "openai.azure.com"))
        self._knows_schemas = True

    async def close(self) -> None:
        await self._client.close()

    async def complete(self, call: ModelCall) -> Completion:
        """Return the completion of a call. Raises ModelRefused or ModelAbsent."""
        attempts, broken, wasted = 0, 0, NO_TOKENS
        took: list[float] = []  # seconds of each attempt, without what it waited for its turn
        impatient = stop_after_delay(self.endpoint.patience_s)
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_passing),
            stop=lambda state: broken >= _MOST_BROKEN or impatient(state),
            wait=self._pause_s,
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    attempts += 1
                    try:
                        completion = await self._attempt(call, took)
                    except _BrokenOffError as error:
                        broken, wasted = broken + 1, wasted + error.usage
                        raise
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise ModelAbsent(
                f"the endpoint rejected the credentials or the model: {_said(error)}", wasted, sum(took)
            ) from None
        except openai.APIStatusError as error:
            if _may_pass(error.status_code):
                raise ModelAbsent(
                    f"no answer in {attempts} attempts: {_said(error)}", wasted, sum(took)
                ) from None
            raise ModelRefused(_said(error), wasted, sum(took)) from None
        except (openai.APIError, _BrokenOffError, TimeoutError) as error:
            raise ModelAbsent(
                f"no answer in {attempts} attempts: {_said(error)}", wasted, sum(took)
            ) from None
        usage = completion.usage + wasted
        return completion.model_copy(update={"seconds": sum(took), "attempts": attempts, "usage": usage})

    def _pause_s(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = _asked_pause_s(error) if isinstance(error, openai.APIStatusError) else None
        return asked if asked is not None else self._backoff(state)

    async def _attempt(self, call: ModelCall, took: list[float]) -> Completion:
        prompt = call.prompt_tokens
        if self._requests is not None:
            await self._requests.acquire()
        if self._tokens is not None:
            left: float = prompt + call.sampling.max_tokens  # what a completion takes is not known before
            while left > 0:
                piece = min(left, self._tokens.max_rate)
                await self._tokens.acquire(piece)
                left -= piece
        request, began = self._request(call), time.monotonic()
        try:
            return await self._streamed(request, prompt)
        except openai.BadRequestError as error:
            if "response_format" not in request or "response_format" not in _said(error):
                raise
            self._knows_schemas = False  # the prompt asks for JSON, too, and the reply is validated
            return await self._streamed(self._request(call), prompt)
        finally:
            took.append(time.monotonic() - began)

    async def _streamed(self, request: dict[str, Any], prompt_tokens: int) -> Completion:
        answer = _Answer(prompt_tokens)
        stream = await self._client.chat.completions.create(**request)
        try:
            async with asyncio.timeout(self.endpoint.call_s), stream:
                async for chunk in stream:
                    answer.add(chunk)
        except (openai.APIError, TimeoutError) as error:
            raise _BrokenOffError(f"the stream broke off: {_said(error)}", answer.usage) from None
        except (ValueError, AttributeError, TypeError) as error:
            raise _BrokenOffError(f"the stream holds an invalid answer: {error}", answer.usage) from None
        except Exception as error:  # the HTTP library's own, which depends on the release of openai's package
            if not type(error).__module__.startswith("http"):
                raise
            what = f"the stream broke off: {type(error).__name__} {error}"
            raise _BrokenOffError(what, answer.usage) from None
        return answer.completion()

    def _request(self, call: ModelCall) -> dict[str, Any]:
        sampling = call.sampling
        request: dict[str, Any] = {
            "model": sampling.model,
            "messages": [message.model_dump() for message in call.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            # OpenAI's newer models take only the one, servers of one's own often only the other.
            "max_completion_tokens" if self._is_openai else "max_tokens": sampling.max_tokens,
        }
        if sampling.temperature is not None:
            request["temperature"] = sampling.temperature
        if sampling.reasoning_effort is not None:
            request["reasoning_effort"] = sampling.reasoning_effort
        if call.tools:
            request["tools"] = [tool.model_dump() for tool in call.tools]
        if call.reply_schema is not None and self._knows_schemas:
            schema = {"name": "reply", "schema": call.reply_schema, "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        return request


class _BrokenOffError(Exception):
    """A stream that ended too early, or held an invalid answer; `usage` is its cost."""

    def __init__(self, message: str, usage: Usage) -> None:
        super().__init__(message)
        self.usage = usage


class _Answer:
    """The part of an answer streamed so far."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens  # estimated
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallPieces()
        self._finish: str | None = None
        self._told: Usage | None = None

    def add(self, chunk: Any) -> None:
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            self._told = Usage(
                prompt_tokens=chunk.usage.prompt_tokens,
                completion_tokens=chunk.usage.completion_tokens,
                cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
            )
        for choice in chunk.choices[:1]:
            self._text.append(_str(choice.delta.content))
            self._calls.add([piece.model_dump() for piece in choice.delta.tool_calls or ()])
            extra = choice.delta.model_extra or {}
            self._reasoning.append(_str(extra.get("reasoning_content")) or _str(extra.get("reasoning")))
            self._finish = choice.finish_reason or self._finish

    @property
    def usage(self) -> Usage:
        if self._told is not None:
            return self._told
        tokens = estimated_tokens(_joined([*self._text, *self._reasoning, self._calls.text]))
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=tokens, estimated=True)

    def completion(self) -> Completion:
        """Return the completion. Raises _BrokenOffError if the answer has not ended."""
        if self._finish is None:
            raise _BrokenOffError("the stream ended in the middle of the answer", self.usage)
        text, thought = _without_thought(_joined(self._text))
        return Completion(
            text=text,
            reasoning=_joined(self._reasoning) or thought,
            finish=self._finish,
            usage=self.usage,
            seconds=0.0,
            tool_calls=self._calls.whole(),
        )


def _str(piece: Any) -> str:
    """Return a piece of text; "" for other objects that some servers stream."""
    return piece if isinstance(piece, str) else ""


def _joined(pieces: Sequence[str]) -> str:
    """Join the pieces, in which a character may have been split."""
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _limiter(a_minute: float | None) -> AsyncLimiter | None:
    if a_minute is None:
        return None
    at_once = max(1.0, a_minute * _BURST_S / 60)
    return AsyncLimiter(at_once, 60 * at_once / a_minute)


def _without_thought(text: str) -> tuple[str, str]:
    """Separate an answer from the thinking before it, which some servers leave in the text."""
    found = _THOUGHT.match(text)
    return (text[found.end() :], found.group(1).strip()) if found else (text, "")


def _is_passing(error: BaseException) -> bool:
    """Return True if the same request may be answered later."""
    if isinstance(error, openai.APIStatusError):
        asked = _asked_pause_s(error)
        if _is_quota(error) or (asked is not None and asked > _LONGEST_PAUSE_S):
            return False
        return _may_pass(error.status_code)
    return isinstance(error, (openai.APIConnectionError, _BrokenOffError, TimeoutError))


def _may_pass(status: int) -> bool:
    return status in (408, 409, 429) or status >= 500


def _is_quota(error: openai.APIStatusError) -> bool:
    """Return True if the credit is exhausted: that is a 429, too, but does not pass."""
    return error.status_code == 429 and error.code == "insufficient_quota"


def _asked_pause_s(error: openai.APIStatusError) -> float | None:
    """Return the seconds that the endpoint asks us to wait. Dates are not parsed: few endpoints send any."""
    headers = error.response.headers
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            asked = float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if math.isfinite(asked) and asked >= 0:
            return asked
    return None


def _said(error: Exception) -> str:
    """Return the error's message on one line."""
    text = error.message if isinstance(error, openai.APIError) else str(error)
    return " ".join((text or type(error).__name__).split())[:500]
