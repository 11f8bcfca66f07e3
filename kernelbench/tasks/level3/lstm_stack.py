"""Two LSTM layers with explicit gates and a readout of the mean state."""

import torch
from torch import nn

batch_size = 32
tokens = 48
in_features = 64
hidden_features = 128
out_features = 32


class Layer(nn.Module):
    def __init__(self, in_features: int, hidden_features: int):
        super().__init__()
        self.from_input = nn.Linear(in_features, 4 * hidden_features)
        self.from_hidden = nn.Linear(hidden_features, 4 * hidden_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = x.new_zeros(x.shape[0], self.from_hidden.in_features)
        outputs = []
        for projected in self.from_input(x).unbind(dim=1):
            enter, forget, candidate, leave = (projected + self.from_hidden(hidden)).chunk(4, dim=-1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


class Model(nn.Module):
    def __init__(self, in_features: int, hidden_features: int, out_features: int):
        super().__init__()
        self.layers = nn.Sequential(
            Layer(in_features, hidden_features), Layer(hidden_features, hidden_features)
        )
        self.readout = nn.Linear(hidden_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.readout(self.layers(x).mean(dim=1))


def get_inputs():
    return [torch.randn(batch_size, tokens, in_features)]


def get_init_inputs():
    return [in_features, hidden_features, out_features]
