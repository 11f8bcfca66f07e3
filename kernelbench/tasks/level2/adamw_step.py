"""One AdamW step: the new parameter and both new moments (https://arxiv.org/abs/1711.05101)."""

import torch
from torch import nn

rows = 1024
columns = 2048
learning_rate = 0.01
beta1 = 0.9
beta2 = 0.95
eps = 1e-8
weight_decay = 0.1
step = 10
input_domains = ["real", "real", "real", "positive"]


class Model(nn.Module):
    def __init__(
        self, learning_rate: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int
    ):
        super().__init__()
        self.learning_rate = learning_rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.weight_decay = weight_decay
        self.step = step

    def forward(
        self, parameter: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean = self.beta1 * mean + (1 - self.beta1) * gradient
        square = self.beta2 * square + (1 - self.beta2) * gradient * gradient
        unbiased_mean = mean / (1 - self.beta1**self.step)
        unbiased_square = square / (1 - self.beta2**self.step)
        update = unbiased_mean / (torch.sqrt(unbiased_square) + self.eps)
        decayed = parameter * (1 - self.learning_rate * self.weight_decay)
        return decayed - self.learning_rate * update, mean, square


def get_inputs():
    parameter, gradient, mean = (torch.randn(rows, columns) for _ in range(3))
    return [parameter, gradient, mean, torch.rand(rows, columns)]


def get_init_inputs():
    return [learning_rate, beta1, beta2, eps, weight_decay, step]
