"""A model behind an OpenAI-compatible endpoint: streamed, retried with patience, within its rates.

Refused connections, timeouts, 408, 409, 429, 5xx and answers that break off are retried after the pause that
the endpoint asks for (pauses.py) or an exponential one with jitter, until `patience_s`
have passed since the first attempt, or three answers have broken off, since those are paid for. A refusal of
a parameter is learnt from (request.py) and the call made without it. Everything else is ModelRefused at once,
or ModelAbsent if the endpoint does not accept our credentials or the model. Where no call has been answered,
or several in a row have not, it is EndpointUnusable instead.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import openai
from aiolimiter import AsyncLimiter
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_random_exponential,
)

from kernelwright.agent.llm.endpoint.answer import Answer, BrokenOffError, ErrorBodyError, said_in
from kernelwright.agent.llm.endpoint.pauses import asked_pause_s
from kernelwright.agent.llm.endpoint.request import RESPONSES, Refusal, Requests
from kernelwright.agent.llm.endpoint.responses import ResponsesAnswer, as_responses
from kernelwright.agent.llm.model import (
    NO_TOKENS,
    THOUGHTS,
    TOO_LONG,
    Completion,
    Endpoint,
    EndpointUnusable,
    ModelAbsent,
    ModelCall,
    ModelError,
    ModelRefused,
)

_BURST_S = 10.0  # of a rate, that may be used at once
_MOST_BROKEN = 3  # answers of one call, each of which has to be paid for
_MOST_FAILED = 3  # calls in a row, after which others are not tried
_MOST_CHANGES = 12  # of a request, before its refusal stands
_LONGEST_PAUSE_S = 300.0  # that an endpoint may ask for
_LONGEST_BACKOFF_S = 60.0
# Characters of the body of an answer that ends, far above what any endpoint sends: of its longest event or
# JSON in one piece, and of all events for each token that was asked for.
_MOST_IN_A_LINE, _MOST_A_TOKEN = 16 << 20, 2000
_USUAL_TOKENS = 1 << 16  # of an answer whose request cannot name a limit


class OpenAIModel:
    """A ChatModel. Use it in one event loop, and close it there."""

    def __init__(
        self,
        endpoint: Endpoint,
        known: dict[str, Requests] | None = None,
        say: Callable[[str], None] = lambda line: None,
        answered: bool = False,
    ) -> None:
        """Create a client. Raises MissingPrerequisite, as `Endpoint.require` does.

        `known`: requests by model, as an earlier client has learnt them; `answered`: whether that one had an
        answer. `say` is told what this one learns.
        """
        endpoint.require()
        self.endpoint = endpoint
        self._timeout = openai.Timeout(endpoint.call_s, read=endpoint.silence_s, connect=30.0)
        # Servers of one's own want no key; the client wants some text. It is not to retry by itself.
        self._client = openai.AsyncOpenAI(
            api_key=endpoint.key or "none", base_url=endpoint.url, timeout=self._timeout, max_retries=0
        )
        self._backoff = wait_random_exponential(multiplier=endpoint.backoff_s, max=_LONGEST_BACKOFF_S)
        self._requests = _limiter(endpoint.requests_a_minute)
        self._tokens = _limiter(endpoint.tokens_a_minute)
        host = self._client.base_url.host
        self._is_openai = host.endswith(("openai.com", "openai.azure.com"))
        self._takes_marks = not host.endswith("anthropic.com")  # whose compatible endpoint has no cache
        self.known = known if known is not None else {}
        self._say = say
        self._answered = answered
        self._failed: set[str] = set()  # calls since the last answer

    async def close(self) -> None:
        await self._client.close()

    async def read_context(self, model: str) -> None:
        """Learn the context length of a model, which vLLM, SGLang and OpenRouter list."""
        try:
            listed = await self._client.with_options(timeout=10.0).models.with_raw_response.list()
            found = json.loads(listed.text).get("data", ())
            entry = next(each for each in found if each["id"] == model)
        except (openai.APIError, ValueError, TypeError, AttributeError, KeyError, StopIteration):
            return
        for name in ("max_model_len", "context_length", "max_context_length", "context_window"):
            if isinstance(length := entry.get(name), int) and length > 0:
                self._of(model).context = length
                return

    def _of(self, model: str) -> Requests:
        marks = self._takes_marks and "claude" in model.lower()
        return self.known.setdefault(model, Requests(self._is_openai, self.endpoint.extra, marks))

    async def complete(self, call: ModelCall) -> Completion:
        """Return the completion of a call. Raises ModelRefused or ModelAbsent."""
        attempts, broken, wasted = 0, 0, NO_TOKENS
        took: list[float] = []  # seconds of each attempt, without what it waited for its turn
        impatient = stop_before_delay(self.endpoint.patience_s)
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
                    except BrokenOffError as error:
                        broken, wasted = broken + 1, wasted + error.usage
                        raise
        except _RefusedError as error:
            found: ModelError
            if error.rejects_us:
                said = f"the endpoint rejected the credentials or the model: {error}"
                found = ModelAbsent(said, wasted, sum(took), error.status)
            elif error.is_of_the_moment:
                said = f"no answer in {attempts} attempts: {error}"
                found = ModelAbsent(said, wasted, sum(took), error.status)
            else:
                found = ModelRefused(str(error), wasted, sum(took), error.status)
            raise self._grave(call, found) from None
        except (openai.APIError, BrokenOffError, TimeoutError) as error:
            said = f"no answer in {attempts} attempts: {_said(error)}"
            raise self._grave(call, ModelAbsent(said, wasted, sum(took))) from None
        self._answered = True
        self._failed.clear()
        usage = completion.usage + wasted
        return completion.model_copy(update={"seconds": sum(took), "attempts": attempts, "usage": usage})

    def _grave(self, call: ModelCall, error: ModelError) -> ModelError:
        """Return the error, as EndpointUnusable if there is no sign that any call succeeds."""
        said = str(error)
        if isinstance(error, ModelRefused) and self._answered and (TOO_LONG.search(said) or THOUGHTS in said):
            return error  # this prompt's own fault
        # One task's prompts may be at fault for all of its refusals.
        self._failed.add(f"{call.task}" if isinstance(error, ModelRefused) else call.sha256)
        if self._answered and len(self._failed) < _MOST_FAILED:
            return error
        return EndpointUnusable(str(error), error.usage, error.seconds, error.status)

    def _pause_s(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.asked_pause_s if isinstance(error, _RefusedError) else None
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
        model, began = call.sampling.model, time.monotonic()
        requests = self._of(model)
        body = requests.body(call)
        try:
            for _ in range(_MOST_CHANGES):
                try:
                    completion = await self._answer(body, requests, prompt)
                    limit = body.get("max_completion_tokens", body.get("max_tokens"))
                    return completion.model_copy(update={"limit": limit})
                except _RefusedError as error:
                    rejects_us = error.rejects_us and not requests.wants_responses(error.refusal)
                    if (rejects_us and requests.body(call) == body) or error.status == 429:
                        raise
                    change = requests.learn(call, body, error.refusal)
                    if change is not None:
                        self._say(f"{model}: {change} from now on, for it refused a request: {error!s:.200}")
                    again = requests.body(call)
                    if again == body:
                        raise
                    body = again
            return await self._answer(body, requests, prompt)
        finally:
            took.append(time.monotonic() - began)

    async def _answer(self, body: dict[str, Any], requests: Requests, prompt_tokens: int) -> Completion:
        silence_s = self.endpoint.silence_s if body.get("stream") else self.endpoint.call_s
        timeout = openai.Timeout(self.endpoint.call_s, read=silence_s, connect=30.0)
        answer: Answer
        asked: Any  # what the library returns for either API
        if body.get("api") == RESPONSES:
            answer = ResponsesAnswer(prompt_tokens)
            asked = self._client.responses.with_streaming_response.create(
                extra_body=as_responses(body), timeout=timeout
            )
        else:
            answer = Answer(prompt_tokens)
            asked = self._client.chat.completions.with_streaming_response.create(
                model=body["model"], messages=body["messages"], extra_body=body, timeout=timeout
            )
        limit = body.get("max_completion_tokens", body.get("max_tokens")) or _USUAL_TOKENS
        try:
            async with asyncio.timeout(self.endpoint.call_s), asked as response:
                async for line in _lines(response.iter_text(), limit, answer):
                    answer.add_line(line)
            completion = answer.completion(requests.opens_no_thought)
        except openai.APIStatusError as error:
            raise _RefusedError.of(error) from None
        except ErrorBodyError as error:
            raise _RefusedError(error.status, error.body) from None
        except TimeoutError as error:
            raise BrokenOffError(f"the stream broke off: {_said(error)}", answer.usage) from None
        except Exception as error:  # the HTTP library's own, which depends on the release of openai's package
            if not type(error).__module__.startswith("http"):
                raise
            what = f"the stream broke off: {type(error).__name__} {error}"
            raise BrokenOffError(what, answer.usage) from None
        requests.opens_no_thought |= answer.opens_no_thought
        if completion.tool_calls and not completion.text and "tools" not in body:
            # A tool that nobody offered: what the model gives it is the answer.
            told = "\n".join(call.function.arguments for call in completion.tool_calls)
            return completion.model_copy(update={"text": told, "tool_calls": ()})
        return completion


class _RefusedError(Exception):
    """An endpoint's answer with a status of failure; `str()` gives the status and its own words."""

    def __init__(self, status: int, body: Any, asked_pause_s: float | None = None) -> None:
        error = body.get("error", body) if isinstance(body, dict) else {}
        error = error if isinstance(error, dict) else {}
        parameter = error.get("param")
        self.status, self.asked_pause_s = status, asked_pause_s
        self.refusal = Refusal(status, said_in(body), parameter if isinstance(parameter, str) else None)
        # The credit is exhausted: that is a 429, too, but does not pass.
        self._is_quota = "insufficient_quota" in (error.get("code"), error.get("type"))
        super().__init__(f"HTTP {status}: {self.refusal.words}".rstrip(": "))

    @classmethod
    def of(cls, error: openai.APIStatusError) -> Self:
        text = error.response.text
        try:
            body = json.loads(text)
        except ValueError:
            body = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE)
        body = body[0] if isinstance(body, list) and body else body
        return cls(error.status_code, body, asked_pause_s(error.response.headers))

    @property
    def rejects_us(self) -> bool:
        return self.status in (401, 402, 403, 404) or self._is_quota

    @property
    def may_pass(self) -> bool:
        """Return True if the same request may be answered later."""
        if self._is_quota or (self.asked_pause_s or 0.0) > _LONGEST_PAUSE_S:
            return False
        return self.is_of_the_moment

    @property
    def is_of_the_moment(self) -> bool:
        return self.status in (408, 409, 429) or self.status >= 500


async def _lines(pieces: AsyncIterator[str], tokens: int, answer: Answer) -> AsyncIterator[str]:
    """Yield the lines of a body. Raises BrokenOffError if it is far longer than so many tokens."""
    rest, had = "", 0
    async for piece in pieces:
        had += len(piece)
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line.rstrip("\r")
        if len(rest) > _MOST_IN_A_LINE or had > _MOST_IN_A_LINE + _MOST_A_TOKEN * tokens:
            said = f"the answer does not end: {had} characters came, and {tokens} tokens were asked for"
            raise BrokenOffError(said, answer.usage)
    yield rest


def _limiter(a_minute: float | None) -> AsyncLimiter | None:
    if a_minute is None:
        return None
    at_once = max(1.0, a_minute * _BURST_S / 60)
    return AsyncLimiter(at_once, 60 * at_once / a_minute)


def _is_passing(error: BaseException) -> bool:
    """Return True if the same request may be answered later."""
    if isinstance(error, _RefusedError):
        return error.may_pass
    return isinstance(error, (openai.APIConnectionError, BrokenOffError, TimeoutError))


def _said(error: Exception) -> str:
    """Return the error's message on one line."""
    text = error.message if isinstance(error, openai.APIError) else str(error)
    return " ".join((text or type(error).__name__).split())[:500]
