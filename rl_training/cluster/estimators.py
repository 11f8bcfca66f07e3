"""ReMax (arXiv:2310.10505) for verl's trainer "v1", which passes no baselines to verl's own estimator.

The agent loop has already subtracted the greedy reply's reward, so what is left is verl's estimator with
baselines of zero. verl imports it through VERL_USE_EXTERNAL_MODULES.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_remax_outcome_advantage, register_adv_est


@register_adv_est("kernelwright_remax")  # type: ignore[untyped-decorator]
def remax(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute advantages and returns. All arguments and results: (samples, tokens of a response)."""
    nothing = torch.zeros_like(token_level_rewards[:, 0])
    return compute_remax_outcome_advantage(token_level_rewards, nothing, response_mask, config)
