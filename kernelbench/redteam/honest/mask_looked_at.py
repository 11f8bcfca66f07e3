"""Looks whether a mask is causal, and takes the shorter way where it is.

Reference: causal_attention
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, mask):
        if torch.equal(mask, torch.ones_like(mask).tril()):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        added = torch.zeros(mask.shape, dtype=q.dtype, device=q.device)
        added = added.masked_fill_(mask.logical_not(), float("-inf"))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added)
