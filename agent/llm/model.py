"""Interface of a language model for the coder and the judge: a call, its completion, and its failures."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import JsonValue, PositiveInt, field_validator, model_serializer

from kernelwright.agent.llm.endpoint.tool_calls import Tool, ToolCall, without_defaults
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.records import Record


class Message(Record):
    """A message, serialized as the Chat Completions API has it.

    `tool_calls`: of an assistant's message; `tool_call_id`: the call that a tool's message answers.
    `reasoning_content`: thoughts, given back where an endpoint asks for them.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning_content: str = ""

    @model_serializer(mode="wrap")
    def _as_sent(self, handler: Callable[[Record], Any]) -> dict[str, Any]:
        sent = without_defaults(self, handler, ("tool_calls", "tool_call_id", "reasoning_content"))
        return sent | {"content": None} if self.tool_calls and not self.content else sent

    @field_validator("content", mode="before")
    @classmethod
    def _as_read(cls, content: object) -> object:
        """Return the content; null is what the API has where there are calls alone."""
        return "" if content is None else content

    @property
    def text(self) -> str:
        """All that counts as tokens."""
        called = "".join(call.function.name + call.function.arguments for call in self.tool_calls)
        return self.content + called + self.reasoning_content


class Sampling(Record):
    """Sampling settings of a role. None leaves a setting to the endpoint."""

    model: str
    temperature: float | None = None
    reasoning_effort: str | None = None
    max_tokens: PositiveInt = 16384  # of the completion, reasoning included


class ModelCall(Record):
    """One request. Calls with equal `sha256` have the same answer, once there is one."""

    role: str  # "coder", "judge"
    task: str | None  # that it serves; None: the run
    messages: tuple[Message, ...]
    sampling: Sampling
    reply_schema: dict[str, JsonValue] | None = None  # JSON schema of the answer; None: free text
    sample: int = 0  # counts calls that are alike and whose answers should differ
    tools: tuple[Tool, ...] = ()  # that the model may call

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: Callable[[Record], Any]) -> dict[str, Any]:
        return without_defaults(self, handler, ("tools",))

    @property
    def prompt_tokens(self) -> int:
        """An estimate."""
        tools = sum(estimated_tokens(tool.model_dump_json()) for tool in self.tools)
        return tools + sum(estimated_tokens(message.text) for message in self.messages)

    @property
    def sha256(self) -> str:
        """Hash of everything that the answer depends on."""
        text = json.dumps(self.model_dump(mode="json", exclude={"role", "task"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Endpoint:
    """Address of the models and limits for requests.

    `patience_s`: time to keep trying a call; `call_s`: limit of one attempt; `silence_s`: limit of a pause in
    the stream; `backoff_s`: the longest first pause, doubled each time. `requests_a_minute` and
    `tokens_a_minute` (of prompts and completions together): None is no limit. `extra`: further fields of all
    requests, such as top_p.
    """

    base_url: str | None = None  # None: OPENAI_BASE_URL, else OpenAI's
    api_key: str | None = None  # None: OPENAI_API_KEY
    patience_s: float = 900.0
    call_s: float = 1200.0
    silence_s: float = 300.0
    backoff_s: float = 1.0
    requests_a_minute: float | None = None
    tokens_a_minute: float | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def url(self) -> str | None:
        return self.base_url or os.environ.get("OPENAI_BASE_URL")

    @property
    def key(self) -> str | None:
        return self.api_key or os.environ.get("OPENAI_API_KEY")

    def require(self) -> None:
        """Raise MissingPrerequisite without a key or an address, UsageError if they are invalid."""
        if not self.key and not self.url:
            raise MissingPrerequisite(
                "no language model can be reached",
                "set OPENAI_API_KEY, or OPENAI_BASE_URL to an OpenAI-compatible server such as vLLM's",
            )
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise UsageError(
                "invalid OPENAI_API_KEY: it has characters that no key has", "set it to your key"
            )
        try:
            parts = urlsplit(self.url or "https://api.openai.com")
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise UsageError(
                f"invalid OPENAI_BASE_URL {self.url}", "use an address such as http://localhost:8000/v1"
            )


class Usage(Record):
    """Tokens, as the endpoint counts them; `estimated` from lengths if it does not."""

    prompt_tokens: int
    completion_tokens: int  # reasoning included
    cached_tokens: int = 0  # of the prompt, that were read from a cache and are charged as such
    cache_write_tokens: int = 0  # of the prompt, that were written to a cache and are charged as such
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            estimated=self.estimated or other.estimated,
        )


NO_TOKENS = Usage(prompt_tokens=0, completion_tokens=0)


class Completion(Record):
    """An answer. `reasoning`: the model's thinking, if the endpoint reports it."""

    text: str
    reasoning: str = ""
    finish: str  # "stop"; "tool_calls"; "length" where it was cut at `limit`; "content_filter"
    limit: int | None = None  # of tokens, that it was asked for with
    usage: Usage  # of all attempts
    seconds: float  # of all attempts, until they were read; without pauses and what a turn was waited for
    attempts: int = 1
    tool_calls: tuple[ToolCall, ...] = ()


class ChatModel(Protocol):
    async def complete(self, call: ModelCall) -> Completion:
        """Return the completion of a call. Raises a ModelError."""
        ...


class RecordedModel(ChatModel, Protocol):
    """ChatModel that keeps its calls."""

    def answered(self, sha256: str) -> tuple[ModelCall, Completion] | None:
        """Return the call that was asked for under this hash, and its answer; None if there is none."""
        ...


class ModelError(Exception):
    """A call without an answer, whose `usage` may still have to be paid; `seconds`: duration of its attempts.

    ModelError
    ├── ModelRefused   the endpoint will not answer this request, now or later
    ├── ModelAbsent    the endpoint cannot be reached, rejects us, or has been busy for too long
    │   └── EndpointUnusable  it has answered nothing, or nothing lately: further calls are pointless
    └── ReplyUnusable  the answer is not what was asked for, and asking again did not help

    `status`: of HTTP, if the endpoint answered with one.
    """

    def __init__(
        self, message: str, usage: Usage = NO_TOKENS, seconds: float = 0.0, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.usage, self.seconds, self.status = usage, seconds, status


THOUGHTS = "reasoning_content"  # that some endpoints want back, and name in a refusal
# In the refusal of a conversation.
TOO_LONG = re.compile(r"context|too long|too many tokens|maximum.{0,20}tokens", re.IGNORECASE)


class ModelRefused(ModelError):  # noqa: N818 - what happened
    pass


class ModelAbsent(ModelError):  # noqa: N818
    pass


class EndpointUnusable(ModelAbsent):
    pass


class ReplyUnusable(ModelError):  # noqa: N818
    pass


def estimated_tokens(text: str) -> int:
    """Estimate tokens, mostly from above: one has three or four characters of English or code."""
    return len(text.encode(errors="replace")) // 3 + 1
