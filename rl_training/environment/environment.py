"""The tasks a policy is trained on: source of rollouts, optionally with exemplars in their first prompts."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.exemplars import ExemplarStore, contrastive_section


@dataclass
class TrainingEnvironment:
    """Environment of a policy. `seed`: of the exemplars in prompts."""

    tasks: Mapping[str, TaskData]
    grader: Grader
    turns: int = 1
    exemplars: ExemplarStore = field(default_factory=ExemplarStore)
    shown: int = 0
    seed: int = 0

    def rollout(self, task: str, draw: int) -> Rollout:
        """Begin a rollout.

        `draw`: the number of the prompt in the run; rollouts of one draw share a prompt.
        """
        section = ""
        if self.shown:
            rng = random.Random(f"{self.seed} {draw}")
            section = contrastive_section(self.exemplars.draw(task, rng, self.shown))
        return Rollout(self.tasks[task], self.grader, self.turns, section)

    def another(self, draw: int, attempt: int) -> tuple[str, int]:
        """Return a task and a draw in place of one whose replies teach nothing, for the n-th attempt."""
        rng = random.Random(f"{self.seed} {draw} {attempt} again")
        return rng.choice(sorted(self.tasks)), rng.getrandbits(31)
