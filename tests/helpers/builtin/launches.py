"""References whose small work shares launches."""

from kernelwright.agent.builtin.scheduling.launches import SMALL
from tests.helpers.builtin.proving import source

# What forward does and with what, the kernels of the file, and the calls in its forward.
CASES = {
    "updates of parameters": (
        "return [torch.tanh(w * y) * x[i] for i, w in enumerate(self.w)]",
        "torch.randn(6, 300), torch.rand(1)",
        (1, 1),
    ),
    "in any order": ("return tuple(torch.exp(x[i]).abs() for i in (2, 0, 3))", "torch.randn(4, 50)", (1, 1)),
    "of separate tensors": ("return torch.exp(x), torch.exp(y)", "torch.randn(50), torch.randn(50)", (1, 1)),
    "into one tensor": (
        "return torch.cat([torch.exp(x[i]) * self.w[i][:50] for i in range(4)])",
        "torch.randn(4, 50)",
        (1, 1),
    ),
    "with a number each": (
        "return [x[i] * y[i, 1] for i in range(4)]",
        "torch.randn(4, 50), torch.randn(4, 3)",
        (1, 1),
    ),
    "rows": ("return [torch.softmax(x[i], -1) for i in range(3)]", "torch.randn(3, 7, 40)", (1, 1)),
    "columns": ("return [torch.softmax(x[i], 0) for i in range(3)]", "torch.randn(3, 40, 7)", (1, 1)),
    "sums": ("return [(x[i] * y).sum() for i in range(3)]", "torch.randn(3, 400), torch.randn(400)", (1, 1)),
    "read by products": (
        "z = [torch.softmax(x[i], 0) for i in range(4)]\n        return z[0] @ z[1], z[3] @ z[2], z[1]",
        "torch.randn(4, 20, 20)",
        (1, 1),
    ),
    "after each other": (
        "for i in range(4):\n            y = torch.tanh(y @ y + x[:, i])\n        return y",
        "torch.randn(16, 4, 16), torch.randn(16, 16)",
        (1, 4),
    ),
    "at once, and after each other": (
        "z = [torch.exp(x[i]) for i in range(3)]\n"
        "        for i in range(3):\n            y = torch.exp(y @ z[i])\n        return y",
        "torch.randn(3, 16, 16), torch.randn(16, 16)",
        (2, 4),
    ),
    "with the same part twice": (
        "return torch.tanh(x[0]) * x[1], torch.tanh(x[2]) * x[2], torch.tanh(x[3]) * x[0]",
        "torch.randn(4, 50)",
        (1, 1),
    ),
    "of several kinds": (
        "return torch.exp(x), torch.softmax(y, -1), y.t() * 2, y.sum() + 1",
        "torch.randn(500), torch.randn(20, 33)",
        (1, 1),
    ),
    "of several kinds, again and again": (
        "a, b = x, y\n        for _ in range(3):\n            a, b = torch.tanh(a @ a), torch.softmax(b @ b, -1)\n"
        "        return a, b",
        "torch.randn(20, 20), torch.randn(30, 30)",
        (1, 3),
    ),
    "of several kinds, and many": (
        "return [torch.exp(w[:9 * i + 9] * x[i]) for i, w in enumerate([*self.w] * 3)]",
        "torch.randn(18, 1)",
        (2, 2),
    ),
    "that needs the other's result": (
        "z = torch.exp(x)\n        return z, torch.softmax(y * z.sum(), -1)",
        "torch.randn(500), torch.randn(20, 33)",
        (2, 2),
    ),
    "too large": (
        "return [torch.exp(x[i]) for i in range(2)]",
        f"torch.randn(2, {SMALL})",
        (1, 2),
    ),
    "turned": (
        "return [x[i].transpose(1, 2).exp() for i in range(3)]",
        "torch.randn(3, 2, 20, 33)",
        (1, 1),
    ),
}


def written(forward: str, inputs: str) -> str:
    init = "self.w = nn.ParameterList(torch.randn(300) for _ in range(6))"
    return source(forward, inputs, init=init, arguments="x, y" if inputs.count("torch.") > 1 else "x")


REPEATED = {name: written(forward, inputs) for name, (forward, inputs, _) in CASES.items()}
