"""Conversations with tools: one a task, shortened as they grow, and continued where a killed run left them.

A conversation is a head (the system text and the task), and turns: an answer of the model, with the answers
to its calls. Past the limit of tokens the head is rebuilt, with the table of attempts and the best file,
and the last turns are kept:

    before   system │ task │ turn 1 │ turn 2 │ … │ turn 17 │ turn 18
    after    system │ task, what was tried, the best file │ turn 17 │ turn 18

A call's request holds the conversation so far. So a run that goes on takes it from the last one recorded,
with its answer, and asks nothing again.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.agent.llm.endpoint.tool_calls import ToolCall
from kernelwright.agent.llm.model import (
    THOUGHTS,
    TOO_LONG,
    ChatModel,
    Completion,
    Message,
    ModelCall,
    ModelError,
    ModelRefused,
    Sampling,
    estimated_tokens,
)
from kernelwright.agent.llm.prompting import PromptSubject, agent_messages
from kernelwright.agent.llm.runtime import Runtime
from kernelwright.agent.llm.situation import Situations
from kernelwright.agent.llm.toolbox import tools
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import best_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Language, Task
from kernelwright.results.store.records import LlmCall

ROLE = "agent"
REFUSED = "Not done: "  # how the answer to a call begins that cannot be carried out
_KEPT = 0.5  # of the limit of tokens, that a conversation is shortened to
_HEAD = 2  # messages
_NO_TOOLS = re.compile(r"\btools?\b|tool[_-]|function[ _-]call", re.IGNORECASE)

Turn = tuple[Message, ...]


@dataclass
class Conversation:
    """The conversation on one task; `answer` is the model's last one while its calls are not answered."""

    task: Task
    head: Turn
    turns: list[Turn] = field(default_factory=list)
    asked: int = 0  # answers that were asked for
    answer: Completion | None = None
    has_called: bool = False  # any tool
    # By assistants' messages, of endpoints that may want them back.
    thoughts: dict[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.head, *(message for turn in self.turns for message in turn))

    @property
    def without_calls(self) -> int:
        """The number of answers in a row, the last ones, that called no tool."""
        count = 0
        for turn in reversed(self.turns):
            if turn[0].tool_calls:
                break
            count += 1
        return count

    @property
    def in_vain(self) -> int:
        """The number of answers in a row, the last ones, of which no call was carried out."""
        count = 0
        for turn in reversed(self.turns):
            if not all(message.content.startswith(REFUSED) for message in turn[1:]):
                break
            count += 1
        return count

    def close_turn(self, answers: Sequence[str]) -> None:
        """Add the last answer of the model and what is said to its calls; without calls, to itself."""
        assert self.answer is not None
        calls = tuple(map(_well_formed, self.answer.tool_calls))
        own = Message(
            role="assistant", content=self.answer.text or ("" if calls else "(nothing)"), tool_calls=calls
        )
        if any(message.reasoning_content for message in self.messages):
            own = own.model_copy(update={THOUGHTS: self.answer.reasoning})
        if self.answer.reasoning:
            self.thoughts[own.model_dump_json(exclude={THOUGHTS})] = self.answer.reasoning
        if calls:
            self.has_called = True
            told = [
                Message(role="tool", content=text, tool_call_id=call.id)
                for call, text in zip(calls, answers, strict=True)
            ]
        else:
            told = [Message(role="user", content="\n\n".join(answers))]
        self.turns.append((own, *told))
        self.answer = None

    def give_thoughts_back(self) -> bool:
        """Add the model's thoughts to its messages; False if there are none to add."""
        before = list(self.turns)
        self.turns = [
            (
                turn[0].model_copy(
                    update={THOUGHTS: self.thoughts.get(turn[0].model_dump_json(exclude={THOUGHTS}), "")}
                ),
                *turn[1:],
            )
            for turn in self.turns
        ]
        return self.turns != before


@dataclass(frozen=True)
class Conversations:
    """Holds conversations with one model, in one language."""

    model: ChatModel
    sampling: Sampling
    runtime: Runtime
    situation: Situations
    language: Language
    begun: Mapping[str, LlmCall]  # the last call of each conversation of the run so far

    @property
    def author(self) -> str:
        return f"llm:{self.sampling.model}"

    def of(self, task: Task, history: Sequence[Attempt], budget: str) -> Conversation:
        """Return a new conversation, or the one that was begun. `budget`: what is left, in words."""
        call = self.begun.get(task.id)
        return (
            Conversation(task, self._head(task, history, budget)) if call is None else _restored(task, call)
        )

    def ask(
        self, conversation: Conversation, history: Sequence[Attempt], budget: str, context_tokens: int
    ) -> Completion:
        """Have the model answer; the answer is that of the conversation until its turn is closed.

        Raises UsageError if the endpoint has no tools, a ModelError, BudgetSpent.
        """
        if _tokens(conversation.messages) > context_tokens:
            self.shorten(conversation, history, budget, int(_KEPT * context_tokens))
        try:
            answer = self._ask(conversation)
        except ModelRefused as error:
            said = str(error)
            if THOUGHTS in said and conversation.give_thoughts_back():
                answer = self._ask(conversation)
            elif TOO_LONG.search(said) and conversation.turns:
                self.shorten(conversation, history, budget, _tokens(conversation.messages) // 3)
                answer = self._ask(conversation)
            else:
                raise
        conversation.asked += 1
        conversation.answer = answer
        return answer

    def shorten(
        self, conversation: Conversation, history: Sequence[Attempt], budget: str, most_tokens: int
    ) -> None:
        """Rebuild the head, and keep the last turns as far as they fit into so many tokens."""
        conversation.head = self._head(conversation.task, history, budget, compacted=True)
        left = most_tokens - _tokens(conversation.head)
        kept: list[Turn] = []
        for turn in reversed(conversation.turns):
            left -= _tokens(turn)
            if left < 0:
                break
            kept.insert(0, turn)
        conversation.turns = kept

    def _ask(self, conversation: Conversation) -> Completion:
        call = ModelCall(
            role=ROLE,
            task=conversation.task.id,
            messages=conversation.messages,
            sampling=self.sampling,
            sample=conversation.asked,
            tools=tools(),
        )
        try:
            return self.runtime.wait(self.model.complete(call))
        except ModelError as error:
            if conversation.has_called or not _NO_TOOLS.search(str(error)):
                raise
            raise UsageError(
                f"the endpoint does not let {self.sampling.model} call tools ({error})",
                "give --search refine, which needs none (vLLM has tools with --enable-auto-tool-choice and "
                "--tool-call-parser)",
            ) from None

    def _head(self, task: Task, history: Sequence[Attempt], budget: str, compacted: bool = False) -> Turn:
        best = best_of(history)
        shown = None
        if best is not None:
            shown = PromptSubject(best, next(i for i, other in enumerate(history) if other is best))
        situation = self.situation(task, len(history), self.language)
        return agent_messages(situation, self.language, history, shown, budget, compacted)


def last_calls(calls: Iterable[LlmCall]) -> dict[str, LlmCall]:
    """Return the last call of each task's conversation."""
    return {call.task: call for call in calls if call.role == ROLE and call.task is not None}


def _restored(task: Task, call: LlmCall) -> Conversation:
    request = ModelCall.model_validate(call.request)
    found = Conversation(task, request.messages[:_HEAD], asked=request.sample)
    for message in request.messages[_HEAD:]:
        if message.role == "assistant":
            found.turns.append((message,))
        else:
            found.turns[-1] = (*found.turns[-1], message)
    found.has_called = found.asked > len(found.turns) or any(turn[0].tool_calls for turn in found.turns)
    if isinstance(call.response, dict) and "error" not in call.response:
        found.answer = Completion.model_validate(call.response)
        found.asked += 1
    return found


def _well_formed(call: ToolCall) -> ToolCall:
    """Return the call with arguments that are valid JSON: servers parse them when they come back."""
    try:
        if isinstance(json.loads(call.function.arguments), dict):
            return call
    except (ValueError, RecursionError):
        pass
    return call.model_copy(update={"function": call.function.model_copy(update={"arguments": "{}"})})


def _tokens(messages: Iterable[Message]) -> int:
    return sum(estimated_tokens(message.text) for message in messages)
