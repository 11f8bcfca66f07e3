"""A small model with a norm, a function, an MLP and a loss; `build` and `any_size` are what is extracted."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Norm(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Mlp(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, 2 * features, bias=False)
        self.down = nn.Linear(2 * features, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gated(self.up(x), scale=0.5))


def gated(x: Tensor, scale: float) -> Tensor:
    y = torch.erf(x) * torch.tanh(x)
    return (y * torch.sigmoid(x) + scale) * torch.exp(-x * x)


class Wide(nn.Module):
    """More calls than a part may have, of one kind each."""

    def __init__(self, features: int, layers: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(features) for _ in range(layers))
        self.mlps = nn.ModuleList(Mlp(features) for _ in range(layers))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            if self.checkpointed:
                y: Tensor = checkpoint(lambda z, n=norm, m=mlp: m(n(z)), x, use_reentrant=False)
            else:
                y = mlp(norm(x))
            x = x + y
        return x


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


def build(layers: int = 4) -> tuple[nn.Module, Tensor, object]:
    torch.manual_seed(0)
    return Wide(64, layers), torch.randn(64, 64, 64), loss


def any_size(layers: int) -> tuple[nn.Module, Callable[[int, int], Tensor], object]:
    return build(layers)[0], lambda batch, length: torch.randn(batch, length, 64), loss


def refuses() -> tuple[nn.Module, Tensor]:
    class Branches(Norm):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.sum().item() > 1e9 else y.exp().log().exp()

    return Branches(64), torch.randn(2048, 64)
