"""References that multiply small matrices."""

from tests.helpers.builtin.proving import source

PRODUCTS = {
    "what follows a linear layer": source(
        "return F.gelu(self.linear(x)) * 2 + x[:, :1]",
        "torch.randn(70, 100)",
        init="self.linear = nn.Linear(100, 90)",
    ),
    "whole tiles": source("return x @ y", "torch.randn(64, 96), torch.randn(96, 64)", arguments="x, y"),
    "many small ones": source(
        "return torch.softmax(torch.bmm(x, y) * 0.3, -1)",
        "torch.randn(3, 33, 40), torch.randn(3, 40, 50)",
        arguments="x, y",
    ),
    "one right matrix for all": source(
        "return torch.relu(x @ w) + r",
        "torch.randn(2, 3, 17, 40), torch.randn(40, 50), torch.randn(17, 1)",
        arguments="x, w, r",
    ),
}
