"""Reward for slime, and what it does with one that is not known.

    --custom-rm-path kernelwright_env.slime_reward.reward
    --custom-reward-post-process-path kernelwright_env.slime_reward.advantages
    --input-key prompt --label-key answer --metadata-key info --apply-chat-template

slime has no value for "no verdict": such a sample has the reward NaN and is removed from the loss, and
`advantages` leaves it out of its group's mean; without the latter, training shows NaN rather than a 0.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from .settings import connect


async def reward(args: Any, sample: Any, **_: Any) -> float:
    """Return the reward of a `Sample`; NaN without a verdict. Raises RefusedError."""
    client = connect()
    graded = await client.apart(client.grade, sample.label, sample.response)
    sample.metadata = {**(sample.metadata or {}), "verdict": graded.verdict, **graded.numbers}
    if graded.reward is None:
        sample.remove_sample = True
        return math.nan
    return graded.reward


def advantages(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return raw rewards, and rewards less their group's mean, over its deviation where slime is asked to.

    Samples without a verdict are in no mean and have the advantage 0; their raw reward is the group's mean.
    """
    groups: dict[Any, list[float]] = defaultdict(list)
    for sample in samples:
        if not math.isnan(sample.reward):
            groups[sample.group_index].append(sample.reward)
    raw, normalized = [], []
    for sample in samples:
        known = groups[sample.group_index]
        mean = sum(known) / len(known) if known else 0.0
        reward = mean if math.isnan(sample.reward) else sample.reward
        advantage = reward - mean
        if getattr(args, "grpo_std_normalization", False) and len(known) > 1:
            deviation = math.sqrt(sum((one - mean) ** 2 for one in known) / (len(known) - 1))
            advantage /= deviation + 1e-6
        raw.append(reward)
        normalized.append(advantage)
    return raw, normalized
