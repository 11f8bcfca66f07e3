"""Prompts and replies behind the attempts of a run, and the trajectories they form.

A run keeps calls and attempts apart. They are matched by content: the reply whose file is the candidate's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from kernelwright.agent.llm.coder import asked_for
from kernelwright.agent.llm.model import Completion, Message, ModelCall, ReplyUnusable
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.kernelbench.records import Candidate
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt
from kernelwright.rl_training.environment.task_data import TaskData, tasks_of
from kernelwright.rl_training.outcome import Outcome, outcome_of
from kernelwright.rl_training.rewards.reward_input import RewardInput
from kernelwright.rl_training.rewards.scheme import Scheme
from kernelwright.rl_training.trajectory import Trajectory, Turn

MODEL_AUTHOR = "llm:"


@dataclass(frozen=True)
class PromptedReply:
    """A reply with its prompt."""

    messages: tuple[Message, ...]
    reply: str
    reasoning: str = ""
    usable: bool = True


def without_model(data: TaskData, candidate: Candidate) -> PromptedReply:
    """Return the reply for a file no model wrote: the first prompt of its task, and the file alone."""
    asked = asked_for(data.situation, candidate.language, (), None)
    return PromptedReply(asked.messages, fenced(candidate.source))


def fenced(source: str) -> str:
    return f"```python\n{source.strip(chr(10))}\n```\n"


def recorded(
    task: str, attempts: Sequence[RecordedAttempt], calls: Sequence[LlmCall]
) -> dict[int, PromptedReply]:
    """Return replies by the ids of a task's attempts; attempts without a recorded call are left out."""
    sources = {attempt.candidate.sha256: attempt.candidate.source for attempt in attempts}
    left = [found for call in calls if call.task == task and (found := _read(call)) is not None]
    matched: dict[int, PromptedReply] = {}
    for attempt in attempts:
        made = attempt.candidate
        if attempt.confirms or not made.author.startswith(MODEL_AUTHOR):
            continue
        parent = next((sources[sha] for sha in made.parents if sha in sources), None)
        for place, (call, answer) in enumerate(left):
            usable = _gives(answer.text, made.source, parent)
            if usable is not None:
                matched[attempt.id] = PromptedReply(call.messages, answer.text, answer.reasoning, usable)
                del left[place]
                break
    return matched


def trajectories(run: RunDatabase, scheme: Scheme) -> Iterator[Trajectory]:
    """Yield the trajectories of models in a run, for offline learning.

    A file made from another is the next turn of that one's trajectory; one made from none begins a new
    trajectory. Attempts whose prompt is unknown are left out. Raises StorageError.
    """
    calls = run.llm_calls()
    for data in tasks_of(run):
        attempts = run.attempts(data.task.id)
        written = recorded(data.task.id, attempts, calls)
        for chain in _chains([attempt for attempt in attempts if attempt.id in written]):
            yield Trajectory(
                task=data.task.id,
                task_sha256=data.task.sha256,
                origin=f"run {run.run_id}, {chain[0].candidate.author}",
                turns=tuple(_turns(chain, written, scheme)),
                ended="as recorded",
            )


def _chains(attempts: Sequence[RecordedAttempt]) -> list[list[RecordedAttempt]]:
    chains: list[list[RecordedAttempt]] = []
    for attempt in attempts:
        parents = attempt.candidate.parents
        own = (chain for chain in chains if any(a.candidate.sha256 in parents for a in chain))
        chain = next(own, None)
        if chain is None:
            chains.append([attempt])
        else:
            chain.append(attempt)
    return chains


def _turns(
    attempts: Sequence[RecordedAttempt], written: dict[int, PromptedReply], scheme: Scheme
) -> Iterator[Turn]:
    earlier: list[Outcome] = []
    for attempt in attempts:
        outcome, said = outcome_of(attempt.evaluation), written[attempt.id]
        source = attempt.candidate.source if said.usable else ""
        reward = scheme(RewardInput(outcome, source, tuple(earlier)))
        earlier.append(outcome)
        yield Turn(
            messages=said.messages,
            reply=said.reply,
            reasoning=said.reasoning,
            candidate=attempt.candidate.sha256,
            source=source,
            outcome=outcome,
            terms=reward.terms,
            reward=reward.value,
        )


def _read(call: LlmCall) -> tuple[ModelCall, Completion] | None:
    """Return a coder's call and its completion; None for the judge's, and for calls that failed."""
    if call.role != "coder" or (isinstance(call.response, dict) and "error" in call.response):
        return None
    try:
        return ModelCall.model_validate(call.request), Completion.model_validate(call.response)
    except ValidationError:
        return None


def _gives(reply: str, source: str, parent: str | None) -> bool | None:
    """Match a reply with a file: True if it holds it, False if unusable with this text, None otherwise."""
    try:
        return True if candidate_source(reply, parent) == source else None
    except ReplyUnusable:
        return False if source and reply.startswith(source) else None
