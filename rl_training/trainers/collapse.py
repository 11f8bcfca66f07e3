"""Detection of a collapse of online training, or of its end, from its logs; and the last good checkpoint.

Replies that are mostly invalid, or a far divergence from the first policy, do not fix themselves. If the
rewards of a group are all alike there are no advantages, and if a policy always gives the same reply it
explores nothing: both are a collapse if the mean reward fell, and success if it did not.
"""

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from transformers import TrainerCallback

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.trainers.checkpoints import last_good, step_of
from kernelwright.rl_training.trainers.guards import Diverged

_ALIKE, _THE_SAME = "rewards of a group are all alike", "replies do not vary"
_END_OF_LEARNING = (_ALIKE, _THE_SAME)  # which success comes to, too


class HealthLimits(Record):
    """Limits of a healthy run; `patience` consecutive batches of replies beyond one end it."""

    valid_fraction: float = Field(default=0.02, ge=0, le=1)  # at least, of replies that something is known of
    zero_variance: float = Field(default=0.99, ge=0, le=1)  # at most, of groups whose rewards are all alike
    entropy: float = Field(default=1e-4, ge=0)  # at least, nats a token, of replies that are learned from
    kl: float = Field(default=10.0, gt=0)  # at most, nats a token, where it is measured
    unrewarded: float = Field(default=0.95, ge=0, le=1)  # at most, of replies of which nothing is known
    patience: int = Field(default=10, gt=0)


class Collapsed(Diverged):
    """A collapse of training. `healthy`: the last step before it began."""

    def __init__(self, why: str, healthy: int) -> None:
        super().__init__(
            why, "check the curves; a lower --learning-rate, larger groups or easier tasks may help"
        )
        self.healthy = healthy


class CollapseGuard(TrainerCallback):
    """Callback that raises Collapsed, or ends a settled training and sets `settled` to the reason.

    It uses only the logs of the training, which its checkpoints contain.
    """

    def __init__(self, limits: HealthLimits) -> None:
        self._limits = limits
        self.settled = ""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if "unrewarded_fraction" not in (logs or {}):
            return  # no new replies
        batches = [entry for entry in state.log_history if "unrewarded_fraction" in entry]
        recent = [self.beyond(entry) for entry in batches[-self._limits.patience :]]
        if len(recent) < self._limits.patience:
            return
        lasting = [what for what in recent[-1] if all(what in wrong for wrong in recent)]
        for what in lasting:
            before, during = self._parted(batches, what)
            before = before[-self._limits.patience :]
            healthy = during[0]["step"] - 1
            if what not in _END_OF_LEARNING or _fell(before, during):
                raise Collapsed(f"training has collapsed at step {state.global_step}: {what}", healthy)
        if lasting:
            self.settled = f"{lasting[0]}, and the reward has not fallen"
            control.should_training_stop = control.should_save = True

    def beyond(self, logs: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the logs of one step; first what cannot be success."""
        limits = self._limits
        known = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        checks = (
            ("valid_fraction", limits.valid_fraction, False, "almost no reply is valid"),
            ("unrewarded_fraction", limits.unrewarded, True, "almost no reply has a reward"),
            ("kl", limits.kl, True, "the policy has diverged from the first one"),
            ("frac_reward_zero_std", limits.zero_variance, True, _ALIKE),
            ("entropy", limits.entropy, False, _THE_SAME),
        )
        return [
            words
            for name, limit, upper, words in checks
            if name in known and (known[name] > limit if upper else known[name] < limit)
        ]

    def _parted(self, batches: Sequence[Any], what: str) -> tuple[list[Any], list[Any]]:
        """Return the batches before the problem began, and those since."""
        since = len(batches)
        while since and what in self.beyond(batches[since - 1]):
            since -= 1
        return list(batches[:since]), list(batches[since:])


def _fell(before: Sequence[Mapping[str, float]], during: Sequence[Mapping[str, float]]) -> bool:
    """Return True if the mean reward fell by more than its variation from batch to batch."""
    then, now = ([each["turn_reward"] for each in part if "turn_reward" in each] for part in (before, during))
    if not then or not now:
        return False
    return statistics.fmean(now) < statistics.fmean(then) - statistics.pstdev(then)


def restored(folder: Path, healthy: int) -> Path | None:
    """Return the last checkpoint no later than step `healthy`, if any; later ones are removed."""
    for checkpoint in folder.glob("checkpoint-*"):
        step = step_of(checkpoint)
        if step is None or step > healthy:
            shutil.rmtree(checkpoint)
    return last_good(folder)
