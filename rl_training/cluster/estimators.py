"""ReMax (arXiv:2310.10505) for verl's trainer "v1", which hands no baselines to verl's own estimator.

The agent loop has taken the greedy reply's reward off already, so what is left is verl's estimator with
baselines of zero. Imported by verl where VERL_USE_EXTERNAL_MODULES names it.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_remax_outcome_advantage, register_adv_est


@register_adv_est("kernelwright_remax")  # type: ignore[untyped-decorator]
def remax(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both arguments and both results: (samples, tokens of a response)."""
    nothing = torch.zeros_like(token_level_rewards[:, 0])
    return compute_remax_outcome_advantage(token_level_rewards, nothing, response_mask, config)
