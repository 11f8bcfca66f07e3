"""Metrics of a step of online training: what its replies were worth, and where its time went."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

from kernelwright.rl_training.trajectory import SpentSeconds, Trajectory

_STAGES = ("queue", "build", "verify", "time")


def reply_metrics(trajectories: Sequence[Trajectory], families: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of the replies of a step. `families`: the operators of each task, by its id.

    Shares of valid replies and of cheats, and the mean reward as the scheme pays it (neither discounted nor
    smoothed), are over replies with a known reward, and missing without any. `speedup` is the geometric mean
    over correct ones, and `queue_s`, `build_s`, `verify_s` and `time_s` are sums: evaluations beside each
    other take less. What was evaluated before took none of them, and is among the `cache_hits`.
    """
    turns = [turn for made in trajectories for turn in made.turns]
    known = [turn.outcome.kind for turn in turns if turn.reward is not None]
    earned = [turn.reward for turn in turns if turn.reward is not None]
    found = {
        "unrewarded_fraction": 1 - len(known) / len(turns),
        "distinct_fraction": len({turn.candidate for turn in turns}) / len(turns),
    }
    if known:
        found["turn_reward"] = math.fsum(earned) / len(earned)
        found["valid_fraction"] = known.count("correct") / len(known)
        found["cheated_fraction"] = known.count("cheated") / len(known)
    lows = [turn.outcome.low("eager") for turn in turns if turn.outcome.kind == "correct"]
    logs = [math.log(low) for low in lows if low is not None and low > 0]
    if logs:
        found["speedup"] = math.exp(math.fsum(logs) / len(logs))
    return found | _by_family(trajectories, families) | _evaluation_seconds(trajectories)


def _by_family(trajectories: Sequence[Trajectory], families: Mapping[str, str]) -> dict[str, float]:
    valid: dict[str, list[bool]] = defaultdict(list)
    for made in trajectories:
        correct = [turn.outcome.kind == "correct" for turn in made.turns if turn.reward is not None]
        if correct:
            valid[families[made.task]] += correct
    return {f"valid_fraction/{family}": sum(of) / len(of) for family, of in sorted(valid.items())}


def _evaluation_seconds(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    evaluated: dict[tuple[str, str], SpentSeconds] = {}  # of equal files of a step only one is
    hits = 0
    for task, turn in ((made.task, turn) for made in trajectories for turn in made.turns):
        if turn.spent is None or not turn.spent.evaluated:
            continue
        if turn.spent.cached or (task, turn.candidate) in evaluated:
            hits += 1
        else:
            evaluated[task, turn.candidate] = turn.spent
    sums = {f"{stage}_s": math.fsum(getattr(each, stage) for each in evaluated.values()) for stage in _STAGES}
    return sums | {"cache_hits": float(hits)}


class StepClock(TrainerCallback):
    """Clock of what one process does in a step, in seconds; a callback of its trainer.

    `update` is what is left of a step beside the parts that are measured by name.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = self._measured = 0.0

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        since = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - since

    def taken(self) -> Mapping[str, float]:
        """Return the seconds since this was last asked, as metrics."""
        found = {f"{part}_s": seconds for part, seconds in self._seconds.items()}
        self._seconds.clear()
        self._measured = 0.0
        return found

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since, self._measured = time.perf_counter(), sum(self._seconds.values())

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        parts = sum(self._seconds.values()) - self._measured
        self._seconds["update"] += time.perf_counter() - self._since - parts
