"""Evaluation of one policy on tasks: its replies, and what each is worth, kept as they come."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.agent.llm.coder import PromptSpec, asked_for
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Record
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.lines import append, whole_lines
from kernelwright.rl_training.environment.grader import Grader, PendingReply, Pool
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.evaluation.sampling import SamplingSettings, sampled
from kernelwright.rl_training.evaluation.scores import GradedSample
from kernelwright.rl_training.outcome import Outcome, outcome_of
from kernelwright.rl_training.rewards.scheme import SCHEMES

REPLIES = "replies.jsonl"


class KeptReply(Record):
    """A reply to a task, as `replies.jsonl` has it."""

    policy: str
    task: str
    number: int
    reply: str


@dataclass
class ReplyFile:
    """Replies of policies in a file; without a path in memory alone."""

    path: Path | None = None
    known: dict[tuple[str, str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in whole_lines(self.path) if self.path is not None else ():
            try:
                kept = KeptReply.model_validate_json(line)
            except ValidationError as error:
                raise StorageError(f"{self.path} holds no replies", "use another --out") from error
            self.known[kept.policy, kept.task, kept.number] = kept.reply

    def add(self, kept: KeptReply) -> None:
        """Append a reply. Raises StorageError."""
        self.known[kept.policy, kept.task, kept.number] = kept.reply
        if self.path is not None:
            append(self.path, record_text(kept))


@dataclass
class PolicyEvaluation:
    """Evaluation on these tasks, by one attempt at each: the first prompt, and a reply."""

    tasks: Sequence[TaskData]
    pool: Pool
    sampling: SamplingSettings
    replies: ReplyFile = field(default_factory=ReplyFile)

    def __post_init__(self) -> None:
        self._grader = Grader(self.pool, SCHEMES["log-speedup"])

    def of(self, name: str, model: Any, tokenizer: Any) -> list[GradedSample]:
        """Return the graded replies of a policy, all that are known of before included. Raises StorageError.

        Each is submitted as soon as it is written: evaluations run while the policy writes the next.
        """
        pending = [
            (data, number, self._begun(data, asked, reply))
            for data in self.tasks
            for asked in [asked_for(data.situation, data.language, (), None)]
            for number, reply in self._replies(name, model, tokenizer, data, asked)
        ]
        return [self._graded(data, number, each) for data, number, each in pending]

    def missing(self, name: str) -> int:
        """Return how many replies of a policy are still to be written."""
        wanted = {(name, data.task.id, n) for data in self.tasks for n in range(self.sampling.samples)}
        return len(wanted - self.replies.known.keys())

    def _replies(
        self, name: str, model: Any, tokenizer: Any, data: TaskData, asked: PromptSpec
    ) -> Iterator[tuple[int, str]]:
        task, known = data.task.id, self.replies.known
        numbers = range(self.sampling.samples)
        if all((name, task, number) in known for number in numbers):
            yield from ((number, known[name, task, number]) for number in numbers)
            return
        for number, reply in sampled(model, tokenizer, asked.messages, task, self.sampling):
            if (name, task, number) not in known:
                self.replies.add(KeptReply(policy=name, task=task, number=number, reply=reply))
            yield number, known[name, task, number]

    def _begun(self, data: TaskData, asked: PromptSpec, reply: str) -> PendingReply:
        plain = data.model_copy(update={"winner": None})  # the best so far is the policy's own
        return self._grader.begin(plain, asked, reply)

    def _graded(self, data: TaskData, number: int, pending: PendingReply) -> GradedSample:
        found = pending.result()
        sample = GradedSample(task=data.task.id, family=data.family, number=number, outcome=found.outcome)
        if not sample.low:
            return sample
        grader = self._grader
        again = grader.evaluation(
            data.task, found.candidate, grader.submit(data.task, found.candidate, grader.again)
        )
        confirmed = again if isinstance(again, Outcome) else outcome_of(again)
        low = sample.model_copy(update={"outcome": confirmed}).low
        return sample.model_copy(update={"confirmed": low or None})
