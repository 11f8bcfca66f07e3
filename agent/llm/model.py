"""Interface of a language model for the coder and the judge: a call, its completion, and its failures."""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from pydantic import JsonValue, PositiveInt

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.records import Record


class Message(Record):
    role: Literal["system", "user", "assistant"]
    content: str


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
    `tokens_a_minute` (of prompts and completions together): None is no limit.
    """

    base_url: str | None = None  # None: OPENAI_BASE_URL, else OpenAI's
    api_key: str | None = None  # None: OPENAI_API_KEY
    patience_s: float = 900.0
    call_s: float = 1200.0
    silence_s: float = 300.0
    backoff_s: float = 1.0
    requests_a_minute: float | None = None
    tokens_a_minute: float | None = None

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
    cached_tokens: int = 0  # of the prompt, that are charged as such
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            estimated=self.estimated or other.estimated,
        )


NO_TOKENS = Usage(prompt_tokens=0, completion_tokens=0)


class Completion(Record):
    """An answer. `reasoning`: the model's thinking, if the endpoint reports it."""

    text: str
    reasoning: str = ""
    finish: str  # "stop"; "length" where it was cut at max_tokens; "content_filter"
    usage: Usage  # of all attempts
    seconds: float  # of all attempts, until they were read; without pauses and what a turn was waited for
    attempts: int = 1


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
    └── ReplyUnusable  the answer is not what was asked for, and asking again did not help
    """

    def __init__(self, message: str, usage: Usage = NO_TOKENS, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.usage, self.seconds = usage, seconds


class ModelRefused(ModelError):  # noqa: N818 - what happened
    pass


class ModelAbsent(ModelError):  # noqa: N818
    pass


class ReplyUnusable(ModelError):  # noqa: N818
    pass


def estimated_tokens(text: str) -> int:
    """Estimate tokens, mostly from above: one has three or four characters of English or code."""
    return len(text.encode(errors="replace")) // 3 + 1
