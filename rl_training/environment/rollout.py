"""A rollout: a prompt, a reply, its outcome, the next prompt."""

from collections.abc import Sequence
from functools import cached_property

from kernelwright.agent.llm.coder import PromptSpec
from kernelwright.agent.llm.model import Message
from kernelwright.agent.protocols import Attempt
from kernelwright.rl_training.environment.grader import GradedReply, Grader, PendingReply
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.environment.warning import warning
from kernelwright.rl_training.rewards.hacks import Case
from kernelwright.rl_training.trajectory import Trajectory, Turn


class Rollout:
    """Rollout of at most `turns` turns; ends early without a verdict, since then nothing can be shown.

        rollout = Rollout(data, grader, turns=4)
        while not rollout.ended:
            rollout.take(policy(rollout.messages))
        trajectory = rollout.trajectory()

    To have the replies of several rollouts evaluated at a time, `begin` them all before the first `finish`.
    `section` is added to the first prompt: exemplars, for one.
    """

    def __init__(
        self, data: TaskData, grader: Grader, turns: int = 1, section: str = "", origin: str = "policy"
    ) -> None:
        assert turns >= 1
        self.data, self.grader, self.origin = data, grader, origin
        self.ended = ""  # why there are no more turns
        self._most = turns
        self._section = section
        self._turns: list[Turn] = []
        self._history: list[Attempt] = []
        self._caught: list[Case] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """Current prompt to answer."""
        assert not self.ended
        return self._prompt

    @cached_property
    def _asked(self) -> PromptSpec:
        return self.grader.form.asked(self.data, self._history)

    @cached_property
    def _prompt(self) -> tuple[Message, ...]:
        """Prompt, fixed until it is answered even if others are caught in the meantime."""
        cases = list(self._caught)
        if self.grader.hacks is not None:
            known = {case.candidate for case in cases}
            cases += [c for c in self.grader.hacks.warnings(self.data.task.id) if c.candidate not in known]
        sections = ([self._section] if not self._turns else []) + ([warning(cases)] if cases else [])
        return extended(self._asked.messages, [text for text in sections if text])

    def take(self, reply: str, reasoning: str = "") -> Turn:
        """Evaluate a reply to `messages`."""
        return self.finish(self.begin(reply), reply, reasoning)

    def begin(self, reply: str) -> PendingReply:
        assert not self.ended
        earlier = [turn.outcome for turn in self._turns]
        more = len(self._turns) + 1 < self._most
        return self.grader.begin(self.data, self._asked, reply, self._history, earlier, profiled=more)

    def finish(self, pending: PendingReply, reply: str, reasoning: str = "") -> Turn:
        judged = pending.result()
        turn = _turn(self._prompt, reply, reasoning, judged)
        self._turns.append(turn)
        if judged.attempt is None:
            self.ended = f"no verdict: {judged.outcome.reason}"
        else:
            self._history.append(judged.attempt)
            self._caught = [judged.repeats] if judged.repeats is not None else []
            if len(self._turns) == self._most:
                self.ended = f"{self._most} turns"
        del self.__dict__["_asked"], self.__dict__["_prompt"]
        return turn

    def trajectory(self) -> Trajectory:
        return Trajectory(
            task=self.data.task.id,
            task_sha256=self.data.task.sha256,
            origin=self.origin,
            turns=tuple(self._turns),
            ended=self.ended,
        )


def extended(messages: Sequence[Message], sections: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages with sections appended to the last one."""
    *before, last = messages
    content = "\n\n".join([last.content.rstrip("\n"), *sections]) if sections else last.content
    return (*before, last.model_copy(update={"content": content}))


def _turn(messages: tuple[Message, ...], reply: str, reasoning: str, judged: GradedReply) -> Turn:
    return Turn(
        messages=messages,
        reply=reply,
        reasoning=reasoning,
        candidate=judged.candidate.sha256,
        source=judged.candidate.source if judged.usable else "",
        outcome=judged.outcome,
        terms=judged.reward.terms,
        reward=judged.reward.value,
        spent=judged.spent,
    )
