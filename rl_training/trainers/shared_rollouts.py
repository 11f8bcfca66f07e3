"""Rollouts of all processes of a training, which the first one holds: it alone has an environment.

Each process generates the replies to its own prompts. The first grades all of a turn together, so that the
pool builds and verifies several at a time, whoever wrote them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.trainers.processes import concatenated, from_first, rank
from kernelwright.rl_training.trajectory import Trajectory


class RewardFailed(KernelwrightError):  # noqa: N818 - what happened
    """A defect of the environment or a reward; failures of the evaluator are outcomes instead."""


@dataclass(frozen=True)
class SampledReply:
    """Reply to a prompt, and the part of it that is graded: without what the model thought before it."""

    text: str
    graded: str


class SharedRollouts:
    """Rollouts of one step, in the order of processes. Every process makes the same calls."""

    def __init__(self, environment: TrainingEnvironment | None, asked: Sequence[tuple[str, int]]) -> None:
        """Begin them. `asked`: the task and the draw of each rollout of this process."""
        counts = concatenated([len(asked)])
        first = sum(counts[: rank()])
        self.own = slice(first, first + len(asked))
        everyone = concatenated(list(asked))
        self._rollouts = [environment.rollout(*each) for each in everyone] if environment else []

    def prompts(self) -> list[list[dict[str, str]] | None]:
        """Return the prompt of each own rollout; None where it has ended."""

        def current() -> list[list[dict[str, str]] | None]:
            return [
                None if rollout.ended else [{"role": m.role, "content": m.content} for m in rollout.messages]
                for rollout in self._rollouts
            ]

        return from_first(current)[self.own]

    def answer(self, replies: Sequence[SampledReply | None]) -> None:
        """Have own replies graded; None for a rollout that has ended. Raises RewardFailed."""
        everyone = concatenated(list(replies))
        from_first(lambda: self._grade(everyone))

    def _grade(self, replies: Sequence[SampledReply | None]) -> None:
        answered = [(r, reply) for r, reply in zip(self._rollouts, replies, strict=True) if reply is not None]
        try:
            pending = [rollout.begin(reply.graded) for rollout, reply in answered]
            for (rollout, reply), submitted in zip(answered, pending, strict=True):
                rollout.finish(submitted, reply.text)
        except KernelwrightError:
            raise
        except Exception as error:
            raise RewardFailed(
                f"a reward raised {type(error).__name__}: {error}",
                "fix it, and give the same command again to resume from the last checkpoint",
            ) from error

    def trajectories(self) -> list[Trajectory]:
        """Return those of all processes, in the first one."""
        return [rollout.trajectory() for rollout in self._rollouts]
