"""Whether online training has collapsed: what it logs is watched, and the last good checkpoint found.

Rewards that are all alike give no advantages, and only an entropy bonus moves the policy then; replies that
are mostly invalid, an entropy near nothing and a far divergence from the first policy do not mend
themselves.
"""

import shutil
from pathlib import Path
from typing import Any

from pydantic import Field
from transformers import TrainerCallback

from kernelbench.records import Record
from rl_training.trainers.checkpoints import last_good, step_of
from rl_training.trainers.guards import Diverged


class Limits(Record):
    """What a healthy run stays within; `patience` steps in a row beyond a limit are a collapse."""

    valid_fraction: float = Field(default=0.02, ge=0, le=1)  # at least, of replies that something is known of
    zero_variance: float = Field(default=0.99, ge=0, le=1)  # at most, of groups whose rewards are all alike
    entropy: float = Field(default=1e-4, ge=0)  # at least, nats a token
    kl: float = Field(default=10.0, gt=0)  # at most, nats a token, where it is measured
    unrewarded: float = Field(default=0.95, ge=0, le=1)  # at most, of replies of which nothing is known
    patience: int = Field(default=10, gt=0)


class Collapsed(Diverged):
    """`healthy`: the last step before it began."""

    def __init__(self, why: str, healthy: int) -> None:
        super().__init__(
            why, "see the curves; a lower --learning-rate, larger groups or easier tasks may help"
        )
        self.healthy = healthy


class CollapseGuard(TrainerCallback):
    """Raises Collapsed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._since: dict[str, int] = {}  # what is wrong -> the step before it began

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        wrong = self.beyond(logs or {})
        if "loss" not in (logs or {}):
            return
        self._since = {what: self._since.get(what, state.global_step - 1) for what in wrong}
        for what, healthy in self._since.items():
            if state.global_step - healthy >= self._limits.patience:
                raise Collapsed(f"training has collapsed at step {state.global_step}: {what}", healthy)

    def beyond(self, logs: dict[str, Any]) -> list[str]:
        """What is wrong with the figures of one step, in words."""
        limits = self._limits
        known = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        checks = (
            ("valid_fraction", limits.valid_fraction, False, "hardly a reply is valid"),
            ("frac_reward_zero_std", limits.zero_variance, True, "rewards of a group are all alike"),
            ("entropy", limits.entropy, False, "replies do not vary"),
            ("kl", limits.kl, True, "the policy is far from where it began"),
            ("unrewarded_fraction", limits.unrewarded, True, "hardly a reply has a reward"),
        )
        return [
            f"{words} ({name})"
            for name, limit, upper, words in checks
            if name in known and (known[name] > limit if upper else known[name] < limit)
        ]


def restored(folder: Path, healthy: int) -> Path | None:
    """The last checkpoint from no later than step `healthy`; later ones are removed. None where there is
    none.
    """
    for checkpoint in folder.glob("checkpoint-*"):
        step = step_of(checkpoint)
        if step is None or step > healthy:
            shutil.rmtree(checkpoint)
    return last_good(folder)
