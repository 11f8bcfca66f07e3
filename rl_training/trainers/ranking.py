"""RRHF: a policy learns to make better replies more likely (Yuan et al., arXiv:2304.05302).

With p_i the mean log-likelihood of reply i's tokens and r_i its reward:

    L_rank = sum over pairs with r_i < r_j of max(0, p_i - p_j)
    L_ft   = -p of the best
    L      = L_rank + L_ft

The paper has L_ft as a sum over tokens; a mean, as in its code, keeps both terms in one unit, whatever the
length of a kernel.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RankingLoss:
    loss: torch.Tensor  # scalar, with a gradient
    ranking: float  # L_rank
    best: float  # L_ft
    ranked_right: float  # share of the pairs where the better reply is more likely; NaN without pairs


def length_normalized(log_probs: torch.Tensor, reply: torch.Tensor) -> torch.Tensor:
    """Return p_i. log_probs (N, T) as `token_log_probs` gives them, reply (N, T) -> (N,)."""
    return log_probs.sum(-1) / reply.sum(-1).clamp(min=1)


def rrhf(scores: torch.Tensor, rewards: torch.Tensor, prompts: torch.Tensor) -> RankingLoss:
    """Compute the loss, a mean over prompts. Of equally good best replies the first is the best.

    scores p (N,) float, rewards r (N,), prompts (N,) int: only replies to the same prompt are compared.
    """
    pairs = (rewards[:, None] < rewards[None, :]) & (prompts[:, None] == prompts[None, :])
    excess = scores[:, None] - scores[None, :]
    groups = torch.unique(prompts)
    ranking = (excess.clamp(min=0) * pairs).sum() / len(groups)
    firsts = [torch.where(prompts == group, rewards, -torch.inf).argmax() for group in groups]
    best = -scores[torch.stack(firsts)].mean()
    right = ((excess < 0) & pairs).sum() / pairs.sum()
    return RankingLoss(ranking + best, ranking.item(), best.item(), right.item())
