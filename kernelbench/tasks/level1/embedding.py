"""Rows of an embedding table looked up by token."""

import torch
from torch import nn

batch_size = 16
tokens = 1024
vocabulary = 16384
features = 512
input_domains = ["index"]


class Model(nn.Module):
    def __init__(self, vocabulary: int, features: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return self.embedding(token)


def get_inputs():
    return [torch.randint(vocabulary, (batch_size, tokens))]


def get_init_inputs():
    return [vocabulary, features]
