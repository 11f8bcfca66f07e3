"""A-LoL: offline policy gradients with a whole reply as one action (Baheti et al., arXiv:2305.14718).

With x a prompt, y a reply, R its reward, V(x) an estimate of the reference policy's reward there, and A = R -
V(x) its advantage, a policy π learns from replies with A > 0, and draws them in proportion to A:

    a-lol            loss = -A · clip(π(y|x) / π_ref(y|x), 1 - ε, 1 + ε) · ln π(y|x)
    a-lol-seq        the same with a ratio for each token: -A · sum_t clip(ratio_t) ln π(y_t|x, y_<t)
    a-lol-ref-free   -A · ln π(y|x)
    a-lol-kl         -A · ln π(y|x) + β · ln(π(y|x) / π_ref(y|x))

No gradient flows through a ratio. ε = 0.9 is that of the authors' code. The paper's V is a head of attention
on the frozen reference policy, learned from its own replies to other prompts; here nothing is generated: V is
a ridge regression of the rewards in the data on the frozen reference policy's features of the prompt. So it
estimates the rewards of the data's authors.
"""

from enum import StrEnum

import torch


class Variant(StrEnum):
    plain = "a-lol"
    seq = "a-lol-seq"
    ref_free = "a-lol-ref-free"
    kl = "a-lol-kl"


def values(features: torch.Tensor, rewards: torch.Tensor, penalty: float = 1.0) -> torch.Tensor:
    """Return V(x) for each reply. features (N, D) of its prompt, rewards (N,) -> (N,) float64.

    Ridge regression, with the mean reward as prior. `penalty`: the number of replies that this mean counts
    for against a prompt of typical length.
    """
    centred = features.double() - features.double().mean(0)
    mean = rewards.double().mean()
    usual = centred.square().sum(-1).mean()
    if usual == 0:
        return mean.expand(len(rewards))
    kernel = centred @ centred.T / usual
    penalized = kernel + penalty * torch.eye(len(rewards), dtype=torch.float64)
    return mean + kernel @ torch.linalg.solve(penalized, rewards.double() - mean)


def drawn(advantages: torch.Tensor, count: int, seed: int) -> list[int]:
    """Draw indices of replies with probabilities proportional to their positive advantages.

    advantages (N,), at least one of them positive.
    """
    weights = advantages.double().clamp(min=0)
    made = torch.Generator().manual_seed(seed)
    return torch.multinomial(weights, count, replacement=True, generator=made).tolist()


def ratios(log_probs: torch.Tensor, reference: torch.Tensor, clip: float) -> torch.Tensor:
    """Return π / π_ref between 1 - clip and 1 + clip, without a gradient. Any shape."""
    return (log_probs - reference).detach().exp().clamp(1 - clip, 1 + clip)


def loss(
    variant: Variant,
    log_probs: torch.Tensor,
    reference: torch.Tensor,
    advantages: torch.Tensor,
    clip: float = 0.9,
    beta: float = 0.1,
) -> torch.Tensor:
    """Return the mean loss over replies.

    log_probs and reference (N, T), 0 outside replies; advantages (N,), above 0.
    """
    whole, whole_reference = log_probs.sum(-1), reference.sum(-1)
    match variant:
        case Variant.plain:
            gained = ratios(whole, whole_reference, clip) * whole
        case Variant.seq:
            gained = (ratios(log_probs, reference, clip) * log_probs).sum(-1)
        case Variant.ref_free | Variant.kl:
            gained = whole
    lost = -advantages * gained
    if variant is Variant.kl:
        lost = lost + beta * (whole - whole_reference)
    return lost.mean()
