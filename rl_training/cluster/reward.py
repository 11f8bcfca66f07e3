"""Reward of a single reply, in the form of verl's reward loop."""

from pathlib import Path

from kernelwright.rl_training.cluster.host import EvaluationSettings
from kernelwright.rl_training.cluster.hosts import asker
from kernelwright.rl_training.cluster.scored import Scored


class VerlReward:
    """Reward function `(task, reply)`: the numbers of `Scored`, always under the same keys.

    `settings`: evaluation.json. Raises NoVerdict.
    """

    def __init__(self, settings: Path) -> None:
        self._evaluation = EvaluationSettings.read(settings)

    async def __call__(self, task: str, reply: str) -> dict[str, float]:
        found: Scored = await asker(self._evaluation, task)("judge", task, reply)
        return found.numbers()
