"""Batched product of queries and keys, scaled and normalized by softmax."""

import torch
from torch import nn

batch_size = 32
queries = 320
keys = 384
head_features = 64


class Model(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(query, key.transpose(1, 2)) * query.shape[-1] ** -0.5
        return torch.softmax(scores, dim=-1)


def get_inputs():
    query = torch.randn(batch_size, queries, head_features)
    return [query, torch.randn(batch_size, keys, head_features)]


def get_init_inputs():
    return []
