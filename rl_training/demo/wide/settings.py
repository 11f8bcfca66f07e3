"""Size and settings of a demo over the wide space."""

import math

from pydantic import Field

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.rewards.scheme import Scheme
from kernelwright.rl_training.rewards.terms import Correct, SpeedupTerm
from kernelwright.rl_training.trainers.settings import OnlineSettings

# The logarithm of the speedup's lower bound. A wrong kernel earns what one 20 times slower than eager does.
REWARD = Scheme(terms=(Correct(weight=3.0), SpeedupTerm(form="log", least=0.05)))


class WideSettings(Record):
    """Settings of a demo over the wide space. Tuned with seeds from 100 on; results use those from 0 on."""

    seeds: int = Field(default=3, gt=0)
    first_seed: int = Field(default=0, ge=0)
    data_seed: int = 0  # of tasks, of which sequences are held out, and of random schedules
    shapes: tuple[tuple[int, int], ...] = ((32, 512), (256, 1024), (2048, 1024), (16, 32768))
    known_tasks: int | None = None  # that may be rewarded; None: all that are not held out
    held_tasks: int = Field(default=96, gt=0)  # each of another sequence
    suite_tasks: int = Field(default=24, ge=0)  # of the built-in suite's levels 1 and 2
    layers: int = 2
    width: int = 48
    steps: int = Field(default=40, gt=0)  # batches of replies
    updates: int = Field(default=1, gt=0)  # with each of them
    batch: int = 32
    group: int = 8
    estimator: str = "max_at_k"
    best_of: int = 4
    rate: float = 1e-2
    entropy: float = 0.02
    save_every: int = 5
    tries: tuple[int, ...] = (1, 4, 16)  # n of best of n
    claimed: int = 4  # the n of the claim
    ranked: int = 64  # draws that the value model ranks
    value_passes: int = Field(default=60, gt=0)  # over its evaluations

    @property
    def evaluations(self) -> int:
        """Evaluations of a training, if no reply is drawn twice."""
        return self.steps * self.batch

    @property
    def equal(self) -> int:
        """Evaluations a held-out task that cost a search without a training as much as the claim costs."""
        return self.claimed + math.ceil(self.evaluations / self.held_tasks)

    def online(self, model: str, seed: int, longest: int) -> OnlineSettings:
        """Return the settings of the RL. `longest`: tokens of a line, with its end."""
        return OnlineSettings(
            model=model,
            steps=self.steps * self.updates,
            updates_per_batch=self.updates,
            learning_rate=self.rate,
            batch=self.batch,
            micro_batch=self.batch,
            group=self.group,
            seed=seed,
            cpu=True,
            save_every=self.save_every * self.updates,
            estimator=self.estimator,
            best_of=self.best_of,
            entropy=self.entropy,
            reward=REWARD,
            max_completion=longest,
        )


# Everything runs, on a handful of tasks; nothing is learned, and nothing can be claimed.
SHORT_WIDE = WideSettings(
    seeds=1,
    shapes=((32, 512), (256, 1024)),
    known_tasks=3,
    held_tasks=2,
    suite_tasks=1,
    steps=2,
    batch=4,
    group=4,
    best_of=2,
    save_every=1,
    tries=(1, 2),
    claimed=2,
    ranked=4,
    value_passes=2,
)
