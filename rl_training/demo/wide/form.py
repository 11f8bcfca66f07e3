"""The form of a policy of schedules: it is asked by features and knobs, and its reply is a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.agent.llm.coder import PromptSpec
from kernelwright.agent.llm.model import Message
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.policy.features import Words
from kernelwright.agent.tuner.policy.space import ScheduleSpace
from kernelwright.rl_training.environment.form import ReadReply
from kernelwright.rl_training.environment.task_data import TaskData


@dataclass(frozen=True)
class ScheduleLines:
    """Form of conversations about tasks of these spaces, by their ids."""

    spaces: Mapping[str, ScheduleSpace]
    words: Words
    _prompts: dict[str, str] = field(default_factory=dict)

    def prompt(self, task: str) -> str:
        if task not in self._prompts:
            self._prompts[task] = self.words.prompt(self.spaces[task])
        return self._prompts[task]

    def asked(self, data: TaskData, history: Sequence[Attempt]) -> PromptSpec:
        message = Message(role="user", content=self.prompt(data.task.id))
        return PromptSpec((message,), data.language, None, None)

    def read(
        self, data: TaskData, asked: PromptSpec, reply: str, history: Sequence[Attempt], author: str
    ) -> ReadReply:
        space = self.spaces[data.task.id]
        if not space.is_line(reply):
            return ReadReply(asked.candidate(reply, author), usable=False, fault="it is no line of schedules")
        return ReadReply(space.candidate(reply, author))
