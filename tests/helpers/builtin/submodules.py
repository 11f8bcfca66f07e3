"""References with submodules that cannot be traced."""

from tests.helpers.builtin.proving import source

PARTS = """
class Router(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, sign=1.0):
        if x.sum() * sign > 0:
            return self.linear(x)
        return -x


class Ranked(nn.Module):
    def forward(self, x):
        best = x[0, 0].item()
        return x * best, x.argmax(1), None


class Named(nn.Module):
    def forward(self, pair, options):
        low, (high, *_) = pair
        return {"scaled": low * float(high.max()), "parts": [high, options["shift"] + low]}


class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)


class Selected(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        rows = (x.sum(1) > 0).nonzero().squeeze(1)
        y[rows] = x[rows].exp()
        return y


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls.item()


class Noted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if not x.sum() > 1e9:
            self.calls += 1


class Flat(nn.Module):
    def forward(self, x):
        return x.view(-1) * float(x[0, 0])


class Turned(nn.Module):
    def forward(self, x):
        return x.mT.view(-1) * float(x[0, 0])


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router(16)

    def forward(self, x, depth):
        return self.router(x) if depth == 0 else self(x * 0.5, depth - 1) + 1


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = Router(width)

    def forward(self, x):
        return x + torch.tanh(self.router(self.norm(x)) * 2)


class Positive(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Measured(nn.Module):
    def forward(self, x):
        return x * 2, float(x.sum())


class Written(nn.Module):
    def forward(self, x):
        return x.mul_(float(x[0, 0]))


class Balanced(nn.Module):
    def forward(self, x):
        self.loss = x.square().mean() * float(x[0, 0])
        return x * float(x[0, 1])


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 16))

    def forward(self, x):
        self.state.add_(x * float(x[0, 0]))
        return self.state


class Same(nn.Module):
    def forward(self, x):
        return x if x.numel() and float(x[0, 0]) != 7.0 else x + 1


"""


def built(forward: str, init: str = "pass", inputs: str = "torch.randn(8, 16)", arguments: str = "x") -> str:
    return source(forward, inputs, init=init, arguments=arguments).replace(
        "class Model", f"{PARTS}class Model"
    )


LEFT = {
    "control flow on data": (
        "return torch.softmax(self.router(torch.relu(x) + 1) * 2, -1)",
        "self.router = Router(16)",
        "router",
    ),
    "several results, and none": (
        "y, i, _ = self.ranked(x * 2); return torch.sigmoid(y + 1) * i[:, None]",
        "self.ranked = Ranked()",
        "ranked",
    ),
    "nested arguments and results": (
        "found = self.named((x + 1, [x * 2, 'a {} b', None]), options={'shift': 0.5}); "
        "return (found['scaled'] - found['parts'][0]).relu() * found['parts'][1]",
        "self.named = Named()",
        "named",
    ),
    "NumPy": ("return torch.exp(self.numpy(x + 1) - 2)", "self.numpy = Numpy()", "numpy"),
    "sizes that depend on data inside": (
        "return torch.tanh(self.some(x * 2) + 1)",
        "self.some = Selected()",
        "some",
    ),
    "two calls in other shapes and ways": (
        "return torch.tanh(self.router(x + 1)).sum(0) + self.router(x[:3] * 2, sign=-1.0).relu().sum(0)",
        "self.router = Router(16)",
        "router",
    ),
    "twice the same call": (
        "return torch.tanh(self.counted(x) + 1) - torch.tanh(self.counted(x) + 1)",
        "self.counted = Counted()",
        "counted",
    ),
    "called for what it keeps": (
        "y = torch.tanh(x + 1); self.noted(x); return y.exp()",
        "self.noted = Noted()",
        "noted",
    ),
    "one of each in a stack, which is traced": (
        "for block in self.blocks:\n            x = block(x)\n        return self.ends['0'](x)",
        "self.blocks = nn.ModuleList(Block(16) for _ in range(3)); "
        "self.ends = nn.ModuleDict([('0', nn.Sequential(nn.Sigmoid(), Selected(), nn.Tanh()))])",
        "blocks.0.router blocks.1.router blocks.2.router ends.0.1",
    ),
    "in one that calls itself": (
        "return torch.tanh(self.nested(x, 2) * 3)",
        "self.nested = Nested()",
        "nested.router",
    ),
    "one under two names": (
        "return torch.tanh(self.b(torch.relu(self.a(x + 1)) * 2) + 1)",
        "self.a = Router(16); self.b = self.a",
        "a",
    ),
    "views that ask how memory lies": (
        "y = torch.tanh(x + 1); "
        "return (self.flat(y[:, 3:8].contiguous()) + 1).exp(), self.turned(y.mT), self.turned(self.weight)",
        "self.flat = Flat(); self.turned = Turned(); self.weight = nn.Parameter(torch.randn(8, 16).t())",
        "flat turned",
    ),
    "its own input as its result": (
        "y = x * 2; z = self.same(y); return torch.tanh(z + y), z",
        "self.same = Same()",
        "same",
    ),
}
