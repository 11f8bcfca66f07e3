"""Has no room for the weights of a layer whose result is thrown away.

Reference: last_state
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, hidden):
        super().__init__()
        self.lstm = nn.LSTM(in_features, hidden, 2, batch_first=True)

    def forward(self, x, h, c):
        return self.lstm(x, (h, c))[1][0]
