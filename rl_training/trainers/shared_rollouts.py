"""Rollouts of all processes of a training, which the first one holds: it alone has an environment.

Each process generates the replies to its own prompts. The first has those of all of them graded, so that the
pool builds and verifies several at a time, whoever wrote them, and the next are generated meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.environment.grader import PendingReply
from kernelwright.rl_training.environment.rollout import Rollout
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
    """Rollouts of one step, in the order of processes. Every process makes the same calls.

    rollouts.submit({0: reply, 1: another})  # of a part of the prompts, while others are generated
    rollouts.submit({2: a_third})
    rollouts.settle()  # all verdicts are there, and the next prompts
    """

    def __init__(
        self, environment: TrainingEnvironment | None, asked: Sequence[tuple[str, int]], group: int = 1
    ) -> None:
        """Begin them. `asked`: the task and the draw of each own rollout; `group`: rollouts of one draw."""
        counts = concatenated([len(asked)])
        first = sum(counts[: rank()])
        self.own = slice(first, first + len(asked))
        self._environment = environment
        self._group = group
        self._asked = concatenated(list(asked))
        self._rollouts = [environment.rollout(*each) for each in self._asked] if environment else []
        self._pending: list[tuple[Rollout, PendingReply, str]] = []
        self._replaced: list[Trajectory] = []
        self._attempts = 0

    def prompts(self) -> list[list[dict[str, str]] | None]:
        """Return the prompt of each own rollout; None where it has ended."""

        def current() -> list[list[dict[str, str]] | None]:
            return [
                None if rollout.ended else [{"role": m.role, "content": m.content} for m in rollout.messages]
                for rollout in self._rollouts
            ]

        return from_first(current)[self.own]

    def submit(self, replies: Mapping[int, SampledReply]) -> None:
        """Have replies graded, by the place of their rollout among the own ones. Raises RewardFailed."""
        everyone = concatenated([(self.own.start + place, reply) for place, reply in replies.items()])
        from_first(lambda: self._begin(everyone))

    def settle(self) -> None:
        """Wait until what was submitted is graded. Raises RewardFailed."""
        from_first(self._finish)

    def replace_alike(self) -> list[int]:
        """Begin other rollouts in place of groups whose rewards are all equal, which teach nothing.

        Another task is drawn for each such group. What has no reward is no reason: it may not have been the
        task's fault. Returns the places of own rollouts that are new.
        """
        new = set(from_first(self._replace))
        return [place - self.own.start for place in range(self.own.start, self.own.stop) if place in new]

    def trajectories(self) -> list[Trajectory]:
        """Return those of all processes, in the first one."""
        return [rollout.trajectory() for rollout in self._rollouts]

    def replaced(self) -> list[Trajectory]:
        """Return those in whose place others were begun, in the first process."""
        return list(self._replaced)

    def _begin(self, replies: Sequence[tuple[int, SampledReply]]) -> None:
        with _rewarding():
            for place, reply in replies:
                rollout = self._rollouts[place]
                self._pending.append((rollout, rollout.begin(reply.graded), reply.text))

    def _finish(self) -> None:
        with _rewarding():
            for rollout, pending, text in self._pending:
                rollout.finish(pending, text)
        self._pending.clear()

    def _replace(self) -> list[int]:
        assert self._environment is not None
        self._attempts += 1
        new: list[int] = []
        for first in range(0, len(self._rollouts), self._group):
            places = range(first, first + self._group)
            made = [self._rollouts[place].trajectory() for place in places]
            rewards = [reward for each in made for reward in each.rewards]
            known = [reward for reward in rewards if reward is not None]
            if len(known) < 2 or any(reward != known[0] for reward in known):
                continue
            self._replaced += made
            another = self._environment.another(self._asked[first][1], self._attempts)
            for place in places:
                self._rollouts[place] = self._environment.rollout(*another)
            new += places
        return new


@contextmanager
def _rewarding() -> Iterator[None]:
    try:
        yield
    except KernelwrightError:
        raise
    except Exception as error:
        raise RewardFailed(
            f"a reward raised {type(error).__name__}: {error}",
            "fix it, and give the same command again to resume from the last checkpoint",
        ) from error
