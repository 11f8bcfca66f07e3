"""An answer, put together from what an endpoint sends: a stream of events, or JSON in one piece.

Providers differ in where they put text, reasoning and usage, and in how a stream ends. An answer that came
whole is kept whatever its tail looks like; one that did not is a BrokenOffError.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelwright.agent.llm.endpoint.tool_calls import ToolCallPieces
from kernelwright.agent.llm.model import Completion, Usage, estimated_tokens
from kernelwright.agent.llm.reply.thought import closes_unopened, without_marks, without_thought

_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
# Fields of a usage, by the names that providers have for them. A dot leads into an object.
_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_CACHED = (
    "prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cache_read_input_tokens",
    "prompt_cache_hit_tokens", "cached_tokens",
)  # fmt: skip
_WRITTEN = (
    "prompt_tokens_details.cache_write_tokens", "prompt_tokens_details.cache_creation_tokens",
    "cache_creation_input_tokens",
)  # fmt: skip


class BrokenOffError(Exception):
    """An answer that ended too early, or cannot be read; `usage` is its cost."""

    def __init__(self, message: str, usage: Usage) -> None:
        super().__init__(message)
        self.usage = usage


class ErrorBodyError(Exception):
    """An error that the endpoint sent in place of an answer, with a status of success."""

    def __init__(self, body: Any, status: int) -> None:
        super().__init__(str(body))
        self.body, self.status = body, status


class Answer:
    """The part of an answer that has arrived."""

    def __init__(self, prompt_tokens: int) -> None:
        """`prompt_tokens`: an estimate, for endpoints that count none."""
        self._prompt_tokens = prompt_tokens
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls = ToolCallPieces()
        self._finish: str | None = None
        self._told: dict[str, Any] = {}  # usage
        self._ended = self._streamed = False
        self._fault = ""  # of an event that cannot be read
        self._unframed: list[str] = []  # lines that are no events

    def add_line(self, line: str) -> None:
        """Add a line of the body. Raises ErrorBodyError, and BrokenOffError for an error in the middle."""
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                self._ended = True
            elif data:
                self._streamed = True
                self._add_text(data)
        elif line.strip() and not line.startswith((":", "event:", "id:", "retry:")):
            self._unframed.append(line)

    def completion(self, cut_thoughts_open: bool = False) -> Completion:
        """Return the completion, without `seconds`. Raises BrokenOffError if the answer has not ended.

        `cut_thoughts_open`: the model's answers begin with a thought that no tag opens, so one that was cut
        before the closing tag is all thought.
        """
        if self._unframed and not self._streamed:
            self._add_text("\n".join(self._unframed))
        text = joined(self._text)
        calls = self._calls.whole()
        if self._finish is None and not ((text or calls) and (self._ended or self._told)):
            what = self._fault or "the stream ended in the middle of the answer"
            raise BrokenOffError(what, self.usage)
        finish = "length" if self._finish in _CUT else self._finish or "stop"
        text, thought = separated(text, finish == "length", cut_thoughts_open)
        return Completion(
            text=text or joined(self._refusal),
            reasoning=joined(self._reasoning) or thought,
            finish=finish,
            usage=self.usage,
            seconds=0.0,
            tool_calls=calls,
        )

    @property
    def opens_no_thought(self) -> bool:
        """Return True if the text closes a thought that it does not open."""
        return closes_unopened(joined(self._text))

    @property
    def usage(self) -> Usage:
        prompt, completion = _first(self._told, _PROMPT), _first(self._told, _COMPLETION)
        total = _first(self._told, ("total_tokens",))
        if prompt and total and total > prompt:  # some count the reasoning in the total alone
            completion = max(completion or 0, total - prompt)
        said = joined([*self._text, *self._reasoning, self._calls.text])
        unknown = not prompt or (not completion and bool(said))
        prompt = prompt or self._prompt_tokens
        cached = min(_first(self._told, _CACHED) or 0, prompt)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion or (estimated_tokens(said) if unknown else 0),
            cached_tokens=cached,
            cache_write_tokens=min(_first(self._told, _WRITTEN) or 0, prompt - cached),
            estimated=unknown,
        )

    def _add_text(self, data: str) -> None:
        try:
            found = json.loads(data)
        except ValueError:
            found = data
        if isinstance(found, list) and found:  # as Google wraps its errors
            found = found[0]
        if isinstance(found, dict):
            self._add(found)
        elif self._finish is None:
            self._fault = f"the answer is not that of a model: {' '.join(data.split())[:200]}"
            if self._streamed:
                raise BrokenOffError(self._fault, self.usage)

    def _add(self, chunk: dict[str, Any]) -> None:
        choices = chunk.get("choices")
        told: Any = chunk.get("usage")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._add_choice(choice)
                told = told or choice.get("usage")
        if isinstance(told, dict):
            self._told |= {name: value for name, value in told.items() if value is not None}
        error = chunk.get("error")
        if error and self._finish in (None, "error"):
            status = _status(error)
            if status is not None and not self._text and not self._reasoning:
                raise ErrorBodyError(chunk, status)
            raise BrokenOffError(f"the endpoint ended the answer: {said_in(error)}", self.usage)
        if not isinstance(choices, list) and not isinstance(told, dict) and not self._text:
            self._fault = f"the answer is not that of a model: {json.dumps(chunk)[:200]}"

    def _add_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        self._text += _texts(delta.get("content"))
        for name in ("reasoning_content", "reasoning", "reasoning_details", "thinking"):
            if thought := "".join(_texts(delta.get(name), thoughts=True)):
                self._reasoning.append(thought)
                break  # some say it twice, under two names
        else:
            self._reasoning += _texts(delta.get("content"), thoughts=True, plain=False)
        self._refusal += _texts(delta.get("refusal"))
        self._calls.add(delta.get("tool_calls"))
        finish = choice.get("finish_reason")
        self._finish = finish.lower() if isinstance(finish, str) and finish else self._finish


def _texts(content: Any, thoughts: bool = False, plain: bool = True) -> Iterator[str]:
    """Yield the texts in a content, which is a text or a list of parts: those of thoughts, or the others.

    `plain`: a content that is just a text counts.
    """
    if isinstance(content, str):
        if plain:
            yield content
        return
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        kind = str(part.get("type", "text"))
        is_thought = kind.startswith(("thinking", "reasoning"))
        if is_thought == thoughts:
            for name in ("text", "thinking", "reasoning", "summary", "content"):
                yield from _texts(part.get(name), plain=True)


def separated(text: str, cut: bool = False, cut_thoughts_open: bool = False) -> tuple[str, str]:
    """Separate an answer from the thinking before it, which some servers leave in the text.

    `cut`: it was cut off. `cut_thoughts_open`: the model's answers begin with a thought that no tag opens.
    """
    answer, thought = without_thought(text)
    if not thought:
        return ("", text.strip()) if cut and cut_thoughts_open else (answer, "")
    return answer.lstrip(), without_marks(thought).strip()


def joined(pieces: Iterable[str]) -> str:
    """Join the pieces, in which a character may have been split."""
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Keys of an error's body that say nothing to a person, or only repeat the request.
_UNSAID = frozenset(
    {"type", "object", "input", "ctx", "url", "id", "request_id", "user_id", "status", "documentation_url"}
)


def said_in(body: Any) -> str:
    """Return the words of an error's body on one line, without what repeats the request."""
    return " ".join("; ".join(dict.fromkeys(_strings(body))).split())[:800]


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str) and node.strip():
        yield node.strip()
    elif isinstance(node, list):
        for item in node:
            yield from _strings(item)
    elif isinstance(node, Mapping):
        where = node.get("loc")
        place = ".".join(map(str, where)) if isinstance(where, list) else ""
        rest = (
            text
            for key, value in node.items()
            if key not in _UNSAID and key != "loc"
            for text in _strings(value)
        )
        yield from [f"{place}: {'; '.join(rest)}"] if place else rest


def _status(error: Any) -> int | None:
    """Return the HTTP status that an error in an answer's body names."""
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    try:
        status = int(str(code))
    except ValueError:
        return None
    return status if 400 <= status < 600 else None


def _first(told: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first field that is a number of tokens."""
    for name in names:
        value: Any = told
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
            return int(value)
    return None
