"""Tasks of layers: a norm, an MLP, an output with dropout."""

TASK = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {takes}):
        return {computes}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
ROWS = "torch.randn(2, 16, 32)"
NORM = TASK.format(
    init="        self.weight = nn.Parameter(torch.ones(32))",
    takes="x",
    computes="x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight",
    inputs=ROWS,
)
MLP = TASK.format(
    init="\n".join(
        f"        self.{name} = nn.Linear({sizes}, bias=False)"
        for name, sizes in (("gate", "32, 48"), ("up", "32, 48"), ("down", "48, 32"))
    ),
    takes="x",
    computes="self.down(F.silu(self.gate(x)) * self.up(x))",
    inputs=ROWS,
)
OUTPUT = TASK.format(
    init="        self.dense = nn.Linear(32, 32)\n        self.norm = nn.LayerNorm(32)",
    takes="x, y",
    computes="self.norm(self.dense(x) + y)",
    inputs=f"{ROWS}, {ROWS}",
)
