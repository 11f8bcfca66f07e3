"""References that multiply matrices."""

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

_HALF = "self.up = nn.Linear(96, 80).to(torch.bfloat16)"


def _half(*shape: int, dtype: str = "bfloat16") -> str:
    return f"torch.randn({', '.join(map(str, shape))}).to(torch.{dtype})"


IN_16_BITS = {
    "what follows a linear layer": source("return F.gelu(self.up(x)) + x[:, :1]", _half(70, 96), init=_HALF),
    "float16, odd sizes": source(
        "return torch.relu(x @ y) * 2",
        f"{_half(37, 45, dtype='float16')}, {_half(45, 51, dtype='float16')}",
        arguments="x, y",
    ),
    "gates of two layers": source(
        "return F.silu(self.gate(x)) * self.up(x)",
        _half(3, 17, 96),
        init=f"self.gate = nn.Linear(96, 80, bias=False).to(torch.bfloat16); {_HALF}",
    ),
    "the left one is turned": source(
        "return (x.mT @ y).clamp(min=0)", f"{_half(96, 33)}, {_half(96, 40)}", arguments="x, y"
    ),
    "many, with a mask": source(
        "return torch.where(m, torch.bmm(x, y), 0.0)",
        f"{_half(5, 20, 32)}, {_half(5, 32, 24)}, torch.rand(20, 24) > 0.5",
        arguments="x, y, m",
    ),
    "heads of one projection": source(
        "q, k = self.up(x).view(2, 33, 2, 4, 10).permute(2, 0, 3, 1, 4)\n        return q @ k.mT * 0.3",
        _half(2, 33, 96),
        init=_HALF,
    ),
}
# What comes before a product, and is computed by its kernel.
BEFORE = {
    "weights in eight bits": source(
        "return F.linear(x, w.to(torch.bfloat16) * s) + 1",
        f"{_half(33, 90)}, torch.randint(-127, 127, (40, 90), dtype=torch.int8), {_half(40, 1)}",
        arguments="x, w, s",
    ),
    "both sides, in float32": source(
        "return (x.relu() + s) @ (y * s.mT).abs()",
        "torch.randn(40, 70), torch.randn(70, 33), torch.randn(1, 70)",
        arguments="x, y, s",
    ),
    "a norm": source(
        "return self.up(x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype))",
        _half(50, 96),
        init=_HALF,
    ),
}
# What no kernel computes again: it is read by others, or not cheap.
APART = {
    "read by two products": source(
        "y = x.relu()\n        return y @ w, y @ z",
        "torch.randn(40, 70), torch.randn(70, 33), torch.randn(70, 34)",
        arguments="x, w, z",
    ),
    "a result, too": source(
        "y = x.relu()\n        return y @ w, y", "torch.randn(40, 70), torch.randn(70, 33)", arguments="x, w"
    ),
    "an expensive one": source(
        "return F.gelu(x) @ w", "torch.randn(40, 70), torch.randn(70, 33)", arguments="x, w"
    ),
}
DEEP = source(
    "return torch.relu(x @ w + b)",
    f"{_half(24, 4096)}, {_half(4096, 40)}, {_half(40)}",
    arguments="x, w, b",
)
OF_INTEGERS = source(
    "return (x[:, :, None] * w[None]).sum(1)",
    "torch.randint(-(1 << 40), 1 << 40, (40, 70)), torch.randint(-9, 9, (70, 33))",
    arguments="x, w",
)
