"""Forms of a conversation: what a policy is asked for a task, and which candidate a reply of it stands for.

Most policies are language models that write whole files. A policy of another kind, such as one that writes
schedules for the builtin coder, has its own form; everything after it, from the evaluator to the trainers, is
the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelwright.agent.llm.coder import PromptSpec, asked_for, objection
from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import Candidate
from kernelwright.rl_training.environment.task_data import TaskData

_SHOWN = 20_000  # characters of a reply that holds no file, kept as its source


@dataclass(frozen=True)
class ReadReply:
    """A reply as a candidate. `usable`: whether it holds one at all; `fault`: why it is not evaluated."""

    candidate: Candidate
    usable: bool = True
    fault: str = ""


class ReplyForm(Protocol):
    """Form of a conversation. Thread-safe."""

    def asked(self, data: TaskData, history: Sequence[Attempt]) -> PromptSpec:
        """Return the prompt after this history."""
        ...

    def read(
        self, data: TaskData, asked: PromptSpec, reply: str, history: Sequence[Attempt], author: str
    ) -> ReadReply:
        """Return what a reply to `asked` stands for."""
        ...


class WholeFiles:
    """Form of language models: a prompt as the language-model coder has it, a reply with a file."""

    def asked(self, data: TaskData, history: Sequence[Attempt]) -> PromptSpec:
        return asked_for(data.situation, data.language, history, None)

    def read(
        self, data: TaskData, asked: PromptSpec, reply: str, history: Sequence[Attempt], author: str
    ) -> ReadReply:
        try:
            source = candidate_source(reply, asked.parent_source)
        except ReplyUnusable as error:
            return ReadReply(asked.candidate(reply[:_SHOWN], author), usable=False, fault=str(error))
        fault = objection(source, data.language, history)
        return ReadReply(asked.candidate(source, author), fault=fault)
