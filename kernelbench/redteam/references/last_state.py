import torch
from torch import nn

batch_size = 8
steps = 16
in_features = 32
hidden = 64


class Model(nn.Module):
    def __init__(self, in_features, hidden):
        super().__init__()
        self.lstm = nn.LSTM(in_features, hidden, 2, batch_first=True)
        self.fc = nn.Linear(hidden, 10)

    def forward(self, x, h, c):
        out, state = self.lstm(x, (h, c))
        out = self.fc(out[:, -1])
        return state[0]


def get_inputs():
    return [
        torch.randn(batch_size, steps, in_features),
        torch.randn(2, batch_size, hidden),
        torch.randn(2, batch_size, hidden),
    ]


def get_init_inputs():
    return [in_features, hidden]
