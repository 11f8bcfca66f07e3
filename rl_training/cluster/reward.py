"""The reward of a single reply, as verl's reward loop asks for it."""

from pathlib import Path

from kernelwright.rl_training.cluster.host import Evaluation
from kernelwright.rl_training.cluster.hosts import asker
from kernelwright.rl_training.cluster.scored import Scored


class Judge:
    """`judge(task, reply)`: the numbers of `Scored`, always under the same keys. Raises NoVerdict.

    `settings`: evaluation.json.
    """

    def __init__(self, settings: Path) -> None:
        self._evaluation = Evaluation.read(settings)

    async def __call__(self, task: str, reply: str) -> dict[str, float]:
        found: Scored = await asker(self._evaluation, task)("judge", task, reply)
        return found.numbers()
