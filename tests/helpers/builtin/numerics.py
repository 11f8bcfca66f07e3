"""References of every kind, and those that special values are given to."""

import pytest

from tests.helpers.builtin.proving import source

REFERENCES = {
    "pointwise chain with broadcasting": source(
        "return torch.where(m, torch.tanh(x * self.scale + y) / 3.0, x.abs().clamp(max=0.5)) ** 2",
        "torch.randn(5, 7, 33), torch.randn(7, 1), torch.rand(5, 1, 33) > 0.5",
        init="self.scale = nn.Parameter(torch.randn(33))",
        arguments="x, y, m",
    ),
    "every activation": source(
        "return F.gelu(x) + F.gelu(x, approximate='tanh') + F.silu(x) + F.mish(x) + F.softplus(x) + F.elu(x)"
        " + F.selu(x) + F.hardswish(x) + F.leaky_relu(x) + F.relu6(x) + F.logsigmoid(x) + F.softsign(x)"
        " + torch.expm1(x / 8) + torch.erf(x) + F.hardtanh(x)",
        "4 * torch.randn(37, 129)",
    ),
    "softmax": source("return torch.softmax(x, dim=-1)", "5 * torch.randn(65, 331)"),
    "softmax over channels": source("return torch.softmax(x, dim=1)", "torch.randn(3, 21, 5, 11)"),
    "logsumexp of a scaled product": source(
        "return torch.logsumexp(x * 0.5 + y, dim=1)",
        "torch.randn(9, 300), torch.randn(300)",
        arguments="x, y",
    ),
    "layer norm, gelu, residual": source(
        "return x + F.gelu(self.norm(x))", "torch.randn(6, 10, 96) + 3", init="self.norm = nn.LayerNorm(96)"
    ),
    "layer norm over three axes": source(
        "return self.norm(x)", "torch.randn(4, 3, 17, 19)", init="self.norm = nn.LayerNorm((3, 17, 19))"
    ),
    "rms norm": source(
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
        "torch.randn(33, 257)",
        init="self.weight = nn.Parameter(torch.ones(257))",
    ),
    "group norm": source(
        "return F.relu(self.norm(x))", "torch.randn(4, 12, 9, 7)", init="self.norm = nn.GroupNorm(3, 12)"
    ),
    "batch norm in training": source(
        "return F.relu(self.norm(x)) * 2", "torch.randn(6, 5, 9, 7)", init="self.norm = nn.BatchNorm2d(5)"
    ),
    "batch norm of rows": source(
        "return self.norm(x)", "torch.randn(300, 70)", init="self.norm = nn.BatchNorm1d(70)"
    ),
    "instance norm": source("return F.instance_norm(x)", "torch.randn(3, 4, 10, 10)"),
    "cross entropy": source(
        "return F.cross_entropy(x, t)",
        "torch.randn(130, 57), torch.tensor([-100, 3] * 65)",
        arguments="x, t",
    ),
    "losses over everything": source(
        "return F.mse_loss(x, y), F.huber_loss(x, y), F.smooth_l1_loss(x, y), F.l1_loss(x, y),"
        " F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction='batchmean')",
        "torch.randn(70, 500), torch.randn(70, 500)",
        arguments="x, y",
    ),
    "statistics of rows": source(
        "return x.argmax(1), x.max(1), x.min(1), x.var(1), x.std(), x.prod(1), (x > 0).any(1), x.norm()".replace(
            "x.max(1), x.min(1)", "x.max(1)[0], x.max(1)[1], x.min(1)[1]"
        ),
        "torch.randn(40, 33)",
    ),
    "recurrence of elements": source(
        "h = self.h0\n        ys = []\n        for t in range(9):\n"
        "            h = torch.sigmoid(a[:, t]) * h + x[:, t]\n            ys.append(torch.tanh(h))\n"
        "        return torch.stack(ys, dim=1), h",
        "torch.randn(5, 9, 33), torch.randn(5, 9, 33)",
        init="self.h0 = nn.Parameter(torch.randn(33))",
        arguments="x, a",
    ),
    "recurrence of matrices": source(
        "e = torch.exp(-d)\n        s = k.new_zeros(2, 3, 7, 33)\n        ys = []\n        for t in range(6):\n"
        "            s = e[:, t, :, :, None] * s + k[:, t, :, :, None] * v[:, t, :, None]\n"
        "            ys.append((q[:, t, :, None] @ s).squeeze(-2))\n"
        "        return torch.cat(ys, dim=-1)",
        "torch.randn(2, 6, 3, 7), torch.randn(2, 6, 3, 7), torch.randn(2, 6, 3, 33), torch.rand(2, 6, 3, 7)",
        arguments="q, k, v, d",
    ),
    "recurrence along rows": source(
        "decay = torch.exp(-x[..., None] * self.a)\n        s, m = torch.zeros_like(decay[:, 0]), x[:, 0]\n"
        "        ys = []\n        for t in range(12):\n            s = decay[:, t] * s + b[:, t, None] * x[:, t, :, None]\n"
        "            m = torch.maximum(m, x[:, t])\n            ys.append((s * c[:, t, None]).sum(-1) + m)\n"
        "        return torch.stack(ys, 1)",
        "torch.rand(3, 12, 40), torch.randn(3, 12, 17), torch.randn(3, 12, 17)",
        init="self.a = nn.Parameter(torch.rand(40, 17))",
        arguments="x, b, c",
    ),
    "recurrence of softmaxes": source(
        "h = x[0]\n        for t in range(1, 7):\n            h = torch.softmax(h + x[t], -1) * h\n        return h",
        "torch.randn(7, 20, 65)",
    ),
    "pooling of sequences": source(
        "return F.max_pool1d(x, 3, 2, dilation=2), torch.tanh(F.avg_pool1d(x, 7, 1, 3)) * 2",
        "torch.randn(3, 5, 61)",
    ),
    "pooling of images": source(
        "return F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, (2, 5)), F.avg_pool2d(x, 3, 1, 1),"
        " F.max_pool2d(x.transpose(1, 2), 2), F.avg_pool2d(x.relu(), 2, divisor_override=3)",
        "torch.randn(2, 5, 23, 30)",
    ),
    "pooling of volumes": source(
        "return F.avg_pool3d(x, 2), F.max_pool3d(x[0], (1, 3, 2), 2), F.max_pool3d(x, 3, 2, 1)",
        "torch.randn(2, 3, 9, 8, 11)",
    ),
    "pooling that cuts windows off": source(
        "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.max_pool2d(x, 2, ceil_mode=True),"
        " F.relu(F.max_pool2d(x, 4, 8)), F.avg_pool2d(x, 1)",
        "torch.randn(2, 5, 23, 31)",
    ),
    "pooling of what is computed": source(
        "z = F.hardswish(x * y + 1); return F.avg_pool2d(z, 2), F.max_pool2d(x.relu(), 3, 2, 1),"
        " F.max_pool2d(torch.erf(y + x), 3, 1), F.avg_pool2d(z.view(2, 10, 12, 15), 3) + z.sum(), z",
        "torch.randn(2, 5, 24, 15), torch.randn(5, 1, 15)",
        arguments="x, y",
    ),
    "depthwise convolution of sequences": source(
        "return F.silu(F.conv1d(F.pad(x, (3, 0)), self.weight, self.bias, groups=6)), self.conv(x)",
        "torch.randn(3, 6, 50)",
        init="self.weight = nn.Parameter(torch.randn(6, 1, 4)); self.bias = nn.Parameter(torch.randn(6));"
        " self.conv = nn.Conv1d(6, 12, 5, stride=2, padding=4, dilation=2, groups=6, bias=False)",
    ),
    "flips": source(
        "y = x.flip(-1); return y * x, x.flip(0).sum(-1), y.flip(1).cumsum(1).flip(1), (x * 2).flip(0, 1) + 1,"
        " torch.softmax(x.flip(2)[1:, :, 3:], -1), x.flip(1), y @ x.mT, F.avg_pool1d(y, 3), (y > 0).flip(-1),"
        " x.mT.flip(1).exp(), x.flip(0).amax((0, 2)), x.unsqueeze(0).flip(0, 3).squeeze(0).tanh()",
        "torch.randn(5, 19, 34)",
    ),
    "windows over padded values": source(
        "y = F.pad(x, (2, 1, 0, 3)); return F.conv2d(y, self.w, groups=5), F.avg_pool2d(y, 2, 3), y.sum(),"
        " F.max_pool2d(F.pad(x, (1, 0), value=-float('inf')), 2), F.max_pool2d(y, 2),"
        " F.conv2d(y, self.w, padding=(1, 0), groups=5), F.conv2d(y, self.w, padding='same', groups=5),"
        " F.avg_pool2d(F.pad(x, (0, 0, 1, 0, 2, 0)), 2), F.avg_pool2d(y, 3, padding=1, count_include_pad=False)",
        "torch.randn(2, 5, 17, 20)",
        init="self.w = nn.Parameter(torch.randn(5, 1, 2, 3))",
    ),
    "depthwise convolution of images": source(
        "return F.relu(self.first(x) + 1), self.second(x.transpose(2, 3)), F.conv2d(x, self.third, padding='same',"
        " dilation=2, groups=5), F.conv2d(x, self.third, padding='valid', groups=5).tanh()",
        "torch.randn(2, 5, 11, 22)",
        init="self.first = nn.Conv2d(5, 15, 3, padding=1, groups=5);"
        " self.second = nn.Conv2d(5, 5, (1, 4), stride=(2, 1), groups=5);"
        " self.third = nn.Parameter(torch.randn(5, 1, 3, 3))",
    ),
    "depthwise convolution of volumes": source(
        "return self.conv(x)", "torch.randn(2, 3, 7, 8, 19)", init="self.conv = nn.Conv3d(3, 3, 2, groups=3)"
    ),
    "running sums": source(
        "return torch.cumsum(x, 0) * 2, torch.cumsum(x.relu(), 1) / x.abs().sum(1, keepdim=True),"
        " torch.cumprod(x.tanh(), -2), torch.cumsum(x, -1), torch.cumsum(y, 1) + 1, torch.cumsum(x.mT, 1)",
        "torch.randn(5, 37, 70), torch.arange(5 * 37 * 70).view(5, 37, 70)",
        arguments="x, y",
    ),
    "running sums of running sums": source(
        "z = torch.cumsum(x, 1); return torch.cumsum(z * z, 1), z.amax(1), z.softmax(1)",
        "torch.randn(3, 41, 33)",
    ),
    "short rows": source(
        "z = x.view(37, 64, 3); return z.amax(-1) * 2, z.sum(-1), x.view(37, 96, 2).mean(-1), z.prod(2).relu()",
        "torch.randn(37, 192)",
    ),
    "short rows that are read again": source(
        "return torch.softmax(x.view(37, 48, 4), -1), x.view(37, 48, 4)[..., 1:3].amin(-1)",
        "torch.randn(37, 192)",
    ),
    "statistics of columns": source("return x.sum(0), x.argmin(0), x.mean(0).max()", "torch.randn(700, 45)"),
    "halves that change places": source(
        "def rotate(z):\n            a, b = z.chunk(2, dim=-1)\n"
        "            return z * self.c + torch.cat((-b, a), dim=-1) * self.s\n        return rotate(x), rotate(y).mT @ x",
        "torch.randn(2, 3, 37, 64), torch.randn(2, 3, 37, 64)",
        init="self.register_buffer('c', torch.rand(37, 64)); self.register_buffer('s', torch.rand(37, 64))",
        arguments="x, y",
    ),
    "results side by side": source(
        "a, b = torch.tanh(x) * 2, self.linear(x); z = torch.cat((a, b, y), 1)\n"
        "        return z, torch.cat((x, a), 1).relu() + 1, z.softmax(-1), torch.cat((x.sum(1), y.exp()[:, 1])), a",
        "torch.randn(50, 33), torch.randn(50, 17)",
        init="self.linear = nn.Linear(33, 70)",
        arguments="x, y",
    ),
    "two concatenations, of other pieces": source(
        "z, w = torch.cat((x, y), 1), torch.cat((y, x), 1); return z.exp() * w, torch.cat((x, y, x), 1)[:, :96].tanh() + z",
        "torch.randn(8, 64), torch.randn(8, 32)",
        arguments="x, y",
    ),
    "a concatenation beside what is read in two ways": source(
        "a = w.exp(); return torch.where(torch.cat((x, y), -1) > 0, a, a.transpose(0, 1))",
        "torch.randn(6, 6, 32), torch.randn(6, 6, 32), torch.randn(6, 6, 64)",
        arguments="x, y, w",
    ),
    "a concatenation read twice by the same": source(
        "z = torch.cat((x, y), 1); a = z.exp(); b = z.exp(); m = b @ w; return m, a.relu(), x * 2",
        "torch.randn(80, 64), torch.randn(80, 64), torch.randn(128, 40)",
        arguments="x, y, w",
    ),
    "pairs of neighbours that are turned": source(
        "a, b = x[..., ::2], x[..., 1::2]\n"
        "        z = torch.stack((a * self.c - b * self.s, a * self.s + b * self.c), -1)\n"
        "        return z.flatten(-2), z * 2, z.flatten(1).softmax(-1)",
        "torch.randn(3, 37, 64)",
        init="self.register_buffer('c', torch.rand(37, 32)); self.register_buffer('s', torch.rand(37, 32))",
    ),
    "elements between elements, read at other shapes": source(
        "z = torch.stack((x.exp(), y * 2), -1).flatten(-2); w = torch.stack((x, y, x + y), -1)\n"
        "        return (z.unflatten(-1, (8, 16)) * u[..., None]).flatten(-2), z.view(9, 32, 4) + v,"
        " z.view(-1, 6).relu() + 1, w.flatten(1) * 3, torch.stack((x, y, x, x * y), -1)",
        "torch.randn(9, 64), torch.randn(9, 64), torch.randn(9, 8), torch.randn(32, 4)",
        arguments="x, y, u, v",
    ),
    "codes of four bits": source(
        "i = torch.stack((p & 15, p >> 4), -1).flatten(-2)\n"
        "        z = self.t[i.int()].unflatten(-1, (-1, 16)) * 2.0 ** (e.int() - 127)[..., None]\n"
        "        return z.flatten(-2), self.t[(p & 3).long()], F.embedding((p >> 5).int(), self.u)",
        "torch.randint(0, 256, (11, 40), dtype=torch.uint8), torch.randint(100, 150, (11, 5), dtype=torch.uint8)",
        init="self.t = nn.Parameter(torch.randn(16)); self.u = nn.Parameter(torch.randn(8, 24))",
        arguments="p, e",
    ),
    "powers of two": source(
        "return torch.ldexp(x[:, None], n), 2.0 ** n, torch.exp2(n.to(torch.int16)), torch.ldexp(y, n.to(torch.int8))",
        "torch.randn(7), torch.randn(600), torch.arange(-300, 300, dtype=torch.int32)",
        arguments="x, y, n",
    ),
    "cheap values that are read again and again": source(
        "return x * (s.float() * g)[..., None], (x + (s - 127)[..., None]).relu(), (x - s[..., None].abs()).sum(-1), s * 2",
        "torch.randn(9, 5, 24), torch.randn(9, 5), torch.randn(1)",
        arguments="x, s, g",
    ),
    "many products with few vectors": source(
        "return w @ x, v @ x, u @ x",
        "torch.randn(2100, 2048), torch.randn(8, 2100), torch.randn(8, 2100), torch.randn(4, 2100)",
        arguments="x, w, v, u",
    ),
    "products with columns of a matrix": source(
        "return x @ w[:, 0], x @ w[:, 3:5], torch.addmm(b[:, ::8], x, w)",
        "torch.randn(600, 700), torch.randn(700, 7), torch.randn(600, 56)",
        arguments="x, w, b",
    ),
    "images side by side": source(
        "z = torch.cat((self.first(x).relu(), x), 1)\n        return self.second(F.silu(z * self.s)), z.mean((2, 3))",
        "torch.randn(2, 5, 9, 11)",
        init="self.first = nn.Conv2d(5, 7, 3, padding=1); self.second = nn.Conv2d(12, 4, 1);"
        " self.s = nn.Parameter(torch.rand(12, 1, 1))",
    ),
    "products with few vectors": source(
        "h = self.linear(x); return h.relu(), (x @ z / 30).tanh(), x[0] @ z, self.few(h @ z.mT), z.mT @ x[1], torch.addmm(b, x, z),"
        " (z[:, :40].mT.contiguous().mT @ w) * 2",
        "torch.randn(3, 700), torch.randn(700, 600), torch.randn(40, 2), torch.randn(600)",
        init="self.linear = nn.Linear(700, 600); self.few = nn.Linear(700, 2)",
        arguments="x, z, w, b",
    ),
    "products of many rows with few columns": source(
        "return torch.softmax(self.linear(x.relu()), -1), x[..., 3:] @ w, (x @ self.linear.weight[0]).sigmoid(),"
        " w[:, :6].mT @ x.flatten(0, 1)[:298].mT.contiguous().mT[:, 5:]",
        "torch.randn(5, 200, 301), torch.randn(298, 7)",
        init="self.linear = nn.Linear(301, 6)",
        arguments="x, w",
    ),
    "statistics of long columns": source(
        "return x.sum(0), x.argmin(0), x.var(0), (x - x.mean(0)) / x.std(0), x.amax(0) * y.sum(1), y.mean(1)",
        "torch.randn(2100, 45) + 2, torch.randn(2, 1501, 45)",
        arguments="x, y",
    ),
    "linear, bias, gelu": source(
        "return F.gelu(self.linear(x)) * 0.5", "torch.randn(20, 24)", init="self.linear = nn.Linear(24, 40)"
    ),
    "convolution, bias, relu": source(
        "return F.relu(self.conv(x)) + self.bias",
        "torch.randn(2, 3, 12, 12)",
        init="self.conv = nn.Conv2d(3, 8, 3); self.bias = nn.Parameter(torch.randn(8, 1, 1))",
    ),
    "gated halves": source(
        "a, b = self.linear(x).chunk(2, dim=-1); return F.silu(a) * b",
        "torch.randn(9, 16)",
        init="self.linear = nn.Linear(16, 64)",
    ),
    "two reductions and a barrier": source(
        "return x / x.norm(), x / x.norm(dim=1, keepdim=True)", "torch.randn(50, 70)"
    ),
    "a list of one": source("return [torch.exp(x)]", "torch.randn(3)"),
    "integers and masks": source(
        "return (n * 2 + 1).clamp(max=7), (n > 2) & ~m, n.float() * x",
        "torch.randn(31), torch.arange(31), torch.arange(31) % 2 == 0",
        arguments="x, n, m",
    ),
    "a tensor written in the forward": source(
        "return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(0.5)", "torch.randn(4, 3)"
    ),
    "double precision": source("return F.gelu(x).softmax(-1)", "torch.randn(9, 50, dtype=torch.float64)"),
    "one image without a batch": source(
        "return F.relu(self.conv(x)), self.conv(x).sum(0)",
        "torch.randn(16, 9, 9)",
        init="self.conv = nn.Conv2d(16, 16, 3)",
    ),
    "comparisons of several types": source(
        "return x == t, x > t, (x * t).bfloat16() > t, h > u, h == 0.1, b == 2, b < 3, n > -1, n == 255, "
        "h >= torch.full((80,), 0.1), h == torch.tensor([0.1]), h == torch.full_like(h, 0.1), "
        "n > torch.full((80,), -1), x.int() > 1.5, torch.isinf(n), b > x",
        "torch.cat((torch.randn(70), torch.full((10,), 0.1))), torch.tensor(0.1, dtype=torch.float64), "
        "torch.cat((torch.randn(70), torch.full((10,), 0.1))).bfloat16(), torch.tensor(0.1), torch.rand(80) > 0.5, "
        "torch.randint(0, 256, (80,), dtype=torch.uint8)",
        arguments="x, t, h, u, b, n",
    ),
    "small whole numbers": source(
        "return x + 100, x * y, abs(x), ~x, x.float() * s, torch.maximum(x, y) > 3, x + z, z.clamp(-5, 5) * x, z - 40000, "
        "x.sum(1), torch.where(x > y, x, y)",
        "*(torch.randint(-128, 128, (6, 70), dtype=torch.int8) for _ in range(2)), "
        "torch.randint(-32768, 32768, (6, 70), dtype=torch.int16), torch.rand(6, 1)",
        arguments="x, y, z, s",
    ),
}
EDGES = {
    "softmax": "return torch.softmax(x, dim=-1)",
    "log_softmax": "return torch.log_softmax(x, dim=-1)",
    "logsumexp": "return torch.logsumexp(x, dim=-1)",
    "extremes": "return x.amax(1), x.amin(1), x.max(1)[1], F.relu(x), x.clamp(-1, 1), torch.maximum(x, x.flip(1))",
    "sums": "return x.sum(1), x.mean(1), x.sum(0), x.amax(0)",
    "activations": "return torch.sigmoid(x), torch.tanh(x), F.softplus(x), F.elu(x), F.leaky_relu(x), torch.exp(x)",
}


def marks(name: str) -> list[pytest.MarkDecorator]:
    """The marks of the test of a reference: of one with a bit of everything, the mark that `make test-fast` takes."""
    return [pytest.mark.one_kernel] if name == "layer norm, gelu, residual" else []
