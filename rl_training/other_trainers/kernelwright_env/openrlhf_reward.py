"""Reward function for OpenRLHF's --remote_rm_url, as a file.

    --remote_rm_url $(python -c 'import kernelwright_env.openrlhf_reward as m; print(m.__file__)')
    --prompt_data DIR/kernelwright_env/tasks --input_key prompt --label_key answer --apply_chat_template

Without a verdict it raises, and the sample has no reward (None). OpenRLHF cannot train with such a sample: it
asks for a reward model and ends, to be started again from its checkpoint; it never learns from a 0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from kernelwright_env.settings import connect  # absolute: OpenRLHF loads this file by its path


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Return the rewards of whole texts. Raises UnknownRewardError, RefusedError."""
    client = connect()
    found = [
        client.grade(label, query.removeprefix(prompt))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    rewards = torch.tensor([graded.known for graded in found])
    numbers = {name: torch.tensor([graded.numbers[name] for graded in found]) for name in found[0].numbers}
    return {"rewards": rewards, "scores": numbers["correct"], "extra_logs": numbers}
