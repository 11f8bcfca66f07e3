"""Requests in the form that an endpoint accepts, which is learnt from what it refuses.

Endpoints that speak OpenAI's protocol differ in the parameters that they take. A refusal is looked up in the
table below; the parameter that it names is left out, renamed or changed, and so it stays for the rest of the
run. A refusal that names nothing stands.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelwright.agent.llm.model import ModelCall

RESPONSES = "responses"
# Parameters that a request can do without, and how refusals name them. Of several the first one named goes.
_DISPENSABLE = {
    "stream_options": r"stream[_ ]options|include_usage",
    "response_format": r"response[_ ]format|json[_ ]schema|structured output|grammar|guided[_ ]|schema for",
    "temperature": r"temperature",
    "reasoning_effort": r"reasoning[_. ]?effort|\breasoning\b",
    "service_tier": r"service[_ ]tier",
}
_STREAM = re.compile(
    r"(?:not|n't|un)\W?(?:be )?(?:support|verif|allow|availab|enabl)\w*[^.]{0,40}\bstream(?:ing)?\b"
    r"|\bstream(?:ing|ed)?\b(?!_)[^.]{0,60}(?:not|n't|un)\W?(?:be )?(?:support|allow|availab|enabl)"
    r"|verified to stream|\bstream\b\W+(?:must|should) be false",
    re.IGNORECASE,
)
_SYSTEM = re.compile(
    r"system\W*(?:role|message|prompt|instruction)|roles?\b[^.]{0,60}\bsystem\b|developer instruction"
    r"|roles must alternate",
    re.IGNORECASE,
)
_MARKED = re.compile(
    r"cache[_ ]control|content\b[^.]{0,60}(?:\bstr\b|string|text)|expected (?:a )?(?:str|string)",
    re.IGNORECASE,
)
_RESPONSES = re.compile(r"\bresponses api|/responses\b|not a chat model", re.IGNORECASE)
_LIMIT = re.compile(
    r"max_(?:completion_|new_|output_)?tokens|maxOutputTokens|maximum tokens|(?:completion|output) tokens"
    r"|context[_ ](?:length|window|size)|max_model_len",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(
    r"unsupported|not supported|does not support|unrecogni[sz]ed|unknown|unexpected|extra (?:fields|inputs)"
    r"|not (?:permitted|allowed)|deprecated|instead",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"(?:context[_ ](?:length|window|size)|max_model_len)\D{0,40}?(\d[\d,]*)"
    r"|max_new_tokens\W+must be <= (\d+)",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"(\d[\d,]*)\D{0,3}(?:input tokens|prompt tokens|in the messages|tokens from the input|`inputs`)"
    r"|(?:prompt (?:contains|has)|messages resulted in|input has)\D{0,20}(\d[\d,]*)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?![\w-]|\.\d)")
_LEAST_REPLY = 256  # tokens: with less room than this the prompt is too long
_LEAST_LIMIT = 512  # tokens: a smaller number in a refusal is another, such as its HTTP status
_MARGIN = 16  # tokens, of the markup between messages


@dataclass(frozen=True)
class Refusal:
    """An endpoint's refusal of a request, as something may be learnt from it."""

    status: int
    words: str
    parameter: str | None = None  # that it names in a field for that


class Requests:
    """The requests for one model."""

    def __init__(
        self, is_openai: bool = False, extra: Mapping[str, Any] | None = None, marks: bool = False
    ) -> None:
        """`extra`: further fields of all requests; `marks`: mark what is to be cached, as for Claude."""
        # OpenAI's newer models take only the one, servers of one's own often only the other.
        self._limit_name: str | None = "max_completion_tokens" if is_openai else "max_tokens"
        self._renamed = False
        self._extra = dict(extra or {})
        self._dropped: set[str] = set()
        self._most: int | None = None  # tokens of a reply
        self._more_than_estimated = 0  # tokens of a prompt
        self._strict = True
        self._schemas = True  # else json_object
        self._system = True
        self._marks = marks
        self._responses = False  # asked for by that API
        self.context: int | None = None  # tokens of prompt and reply
        self.opens_no_thought = False  # of the answers: they only close one

    def body(self, call: ModelCall) -> dict[str, Any]:
        """Return the request for a call, as Chat Completions have it; `api` names another to send it by."""
        sampling = call.sampling
        found: dict[str, Any] = {
            "model": sampling.model,
            "messages": self._messages(call),
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": [tool.model_dump() for tool in call.tools] or None,
            "temperature": sampling.temperature,
            "reasoning_effort": sampling.reasoning_effort,
        }
        if self._limit_name is not None:
            found[self._limit_name] = self.limit(call)
        if call.reply_schema is not None:
            schema = {"name": "reply", "schema": call.reply_schema} | (
                {"strict": True} if self._strict else {}
            )
            schemas = {"type": "json_schema", "json_schema": schema}
            found["response_format"] = schemas if self._schemas else {"type": "json_object"}
        if self._responses:
            found["api"] = RESPONSES
        found |= self._extra
        if "stream" in self._dropped:
            found = found | {"stream": False}
            found.pop("stream_options", None)
        return {
            name: value
            for name, value in found.items()
            if value is not None and (name not in self._dropped or name == "stream")
        }

    def limit(self, call: ModelCall) -> int:
        """Return the tokens that the reply to a call may have."""
        most = call.sampling.max_tokens
        if self._most is not None:
            most = min(most, self._most)
        if self.context is not None:
            room = self.context - self._prompt_tokens(call) - _MARGIN
            most = min(most, max(room, _LEAST_REPLY))
        return most

    def learn(self, call: ModelCall, refused: Mapping[str, Any], refusal: Refusal) -> str | None:
        """Change what the refusal of a request is about, and return the change in words; None if nothing is.

        A request that was made before something else was learnt teaches nothing.
        """
        if self.body(call) != refused:
            return None
        words = f"{refusal.parameter or ''} {refusal.words}"
        if self.wants_responses(refusal):
            self._responses, self._marks = True, False
            return "it is asked by the Responses API"
        if refusal.status >= 500:  # which may pass, except where a schema is too much for the server
            return self._loosen(words) if self._first_named(refused, words) == "response_format" else None
        if (limit := self._limit_name) in refused and _LIMIT.search(words):
            assert limit is not None
            if re.search(rf"\b{limit}\b", words) and _UNKNOWN.search(words):
                return self._rename(limit)
            return self._lower(call, int(refused[limit]), words)
        if refused.get("stream") and _STREAM.search(words):
            return self._drop("stream")
        if self._marks and _MARKED.search(words):
            self._marks = False
            return "cache_control is left out"
        if _SYSTEM.search(words) and any(m["role"] == "system" for m in refused["messages"]):
            self._system = False
            return "the system message is put before the first message of the user"
        named = refusal.parameter if refusal.parameter in refused else self._first_named(refused, words)
        if named is None and "response_format" in refused and re.search(r"response|format|schema", words):
            named = "response_format"
        if named == "response_format":
            return self._loosen(words)
        return self._drop(named) if named in {*_DISPENSABLE, *self._extra} and named is not None else None

    def wants_responses(self, refusal: Refusal) -> bool:
        """Return True if a refusal says that the model is not served by Chat Completions."""
        return not self._responses and _RESPONSES.search(refusal.words) is not None

    def _first_named(self, refused: Mapping[str, Any], words: str) -> str | None:
        """Return the dispensable parameter of the request that the words name first."""
        patterns = {name: rf"\b{re.escape(name)}\b" for name in self._extra} | _DISPENSABLE
        found = {
            name: at.start()
            for name, pattern in patterns.items()
            if name in refused and (at := re.search(pattern, words, re.IGNORECASE))
        }
        return min(found, key=lambda name: found[name], default=None)

    def _drop(self, name: str) -> str:
        self._dropped.add(name)
        return "the answer comes in one piece" if name == "stream" else f"{name} is left out"

    def _rename(self, name: str) -> str:
        if self._renamed:
            self._limit_name = None
            return f"{name} is left out"
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[name]
        self._limit_name, self._renamed = other, True
        return f"{name} is called {other}"

    def _lower(self, call: ModelCall, sent: int, words: str) -> str | None:
        """Lower the limit of the reply to what the words allow; to half of it where they give no number."""
        context = _number(_CONTEXT, words)
        if context is not None:
            prompt = _number(_PROMPT, words)
            if prompt is not None:
                self._more_than_estimated = max(prompt - call.prompt_tokens, self._more_than_estimated)
            room = context - self._prompt_tokens(call) - _MARGIN
            if room < min(sent, _LEAST_REPLY):
                return None  # the prompt is too long
            if room < sent:
                self.context = context
                return f"prompt and reply have at most {context} tokens"
            self._most = 9 * sent // 10  # it counts more than it says
            return f"replies have at most {self._most} tokens"
        numbers = [int(found.replace(",", "")) for found in _NUMBER.findall(words)]
        lower = [number for number in numbers if _LEAST_LIMIT <= number < sent]
        self._most = (
            max(lower) if lower else sent - 1 if sent in numbers and sent == self._most else sent // 2
        )
        return f"replies have at most {self._most} tokens" if self._most > 0 else None

    def _loosen(self, words: str) -> str:
        """Ask for JSON less strictly; the prompt asks for it, too, and the reply is validated."""
        if "json_object" in words and self._schemas:
            self._schemas = False
            return "response_format is json_object"
        if re.search(r"\bstrict\b", words) and self._strict and self._schemas:
            self._strict = False
            return "response_format is not strict"
        return self._drop("response_format")

    def _messages(self, call: ModelCall) -> list[dict[str, Any]]:
        messages = [message.model_dump() for message in call.messages]
        if not self._system and messages[0]["role"] == "system" and len(messages) > 1:
            system, first, *rest = messages
            messages = [first | {"content": f"{system['content']}\n\n{first['content']}"}, *rest]
        if self._marks:
            for place in (0, -1) if call.tools else (0,):  # the system message, and a growing conversation
                messages[place] = _marked(messages[place])
        return messages

    def _prompt_tokens(self, call: ModelCall) -> int:
        return call.prompt_tokens + self._more_than_estimated


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message up to which the prompt is to be cached, as OpenRouter and LiteLLM take it."""
    if not isinstance(message["content"], str) or not message["content"]:
        return message
    part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
    return message | {"content": [part]}


def _number(pattern: re.Pattern[str], words: str) -> int | None:
    found = pattern.search(words)
    return int(next(filter(None, found.groups())).replace(",", "")) if found is not None else None
