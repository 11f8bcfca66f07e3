"""Reward function for verl, over HTTP; `kernelwright train verl` evaluates on verl's own Ray instead.

    reward.custom_reward_function.path=…/kernelwright_env/verl_reward.py
    reward.custom_reward_function.name=compute_score

A row's `reward_model.ground_truth` is its `answer`. Without a verdict it raises: verl leaves the rollout out.
"""

from typing import Any

from kernelwright_env.settings import connect  # absolute: verl loads this file by its path


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """Return the score and metrics, always under the same keys. Raises UnknownRewardError, RefusedError."""
    client = connect()
    graded = await client.apart(client.grade, ground_truth, solution_str)
    return {"score": graded.known, **graded.numbers}
