"""Mamba block: short convolution, then a state-space scan chosen by the input (https://arxiv.org/abs/2312.00752)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 4
tokens = 64
features = 64
inner_features = 128
states = 16
step_rank = 8
kernel_size = 4


class Model(nn.Module):
    def __init__(self, features: int, inner_features: int, states: int, step_rank: int, kernel_size: int):
        super().__init__()
        self.splits = (step_rank, states, states)
        self.project_in = nn.Linear(features, 2 * inner_features, bias=False)
        self.conv = nn.Conv1d(inner_features, inner_features, kernel_size, groups=inner_features)
        self.select = nn.Linear(inner_features, step_rank + 2 * states, bias=False)
        self.step = nn.Linear(step_rank, inner_features)
        self.log_decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner_features, 1))
        self.skip = nn.Parameter(torch.ones(inner_features))
        self.project_out = nn.Linear(inner_features, features, bias=False)

    def scan(self, x: torch.Tensor) -> torch.Tensor:
        low_rank_step, write, read = self.select(x).split(self.splits, dim=-1)
        step = F.softplus(self.step(low_rank_step))
        decay = torch.exp(-step[..., None] * torch.exp(self.log_decay))
        update = (step * x)[..., None] * write[:, :, None, :]
        state = torch.zeros_like(decay[:, 0])
        outputs = []
        for token in range(x.shape[1]):
            state = decay[:, token] * state + update[:, token]
            outputs.append((state * read[:, token, None, :]).sum(dim=-1))
        return torch.stack(outputs, dim=1) + self.skip * x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signal, gate = self.project_in(x).chunk(2, dim=-1)
        padded = F.pad(signal.transpose(1, 2), (self.conv.kernel_size[0] - 1, 0))
        signal = F.silu(self.conv(padded).transpose(1, 2))
        return self.project_out(self.scan(signal) * F.silu(gate))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, inner_features, states, step_rank, kernel_size]
