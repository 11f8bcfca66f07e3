"""References whose axes lie in memory in another order, and images whose channels lie last."""

from tests.helpers.builtin.proving import source

TURNED = {
    "matrices": source(
        "return x.transpose(1, 2) * 2 + y, x.mT.contiguous()",
        "torch.randn(3, 70, 131), torch.randn(131, 1)",
        arguments="x, y",
    ),
    "two values, one of them as it lies": source(
        "return torch.tanh(x.permute(2, 0, 1)) * y.permute(2, 0, 1) + z",
        "torch.randn(9, 33, 40), torch.randn(9, 33, 40), torch.randn(40, 9, 33)",
        arguments="x, y, z",
    ),
    "axes that change places in different ways": source(
        "return x.permute(2, 1, 0) + y.permute(1, 0, 2)",
        "torch.randn(17, 9, 20), torch.randn(9, 20, 17)",
        arguments="x, y",
    ),
    "a part, reduced afterwards": source(
        "y = x[:, 3:, 5:].transpose(1, 2).relu()\n        return y.softmax(-1), y + y.amax(-1, keepdim=True)",
        "torch.randn(2, 50, 90)",
    ),
    "other types": source(
        "return x.to(torch.int64).mT + 1, (x > 0).mT | y, x.double().mT * 3, x.bfloat16().mT.contiguous()",
        "torch.randn(2, 40, 50), torch.rand(2, 50, 40) > 0.5",
        arguments="x, y",
    ),
}
# What rotates halves of a head, forward and backward, as autograd calls it.
INPUTS = {
    "heads, as attention gets them": source(
        "a, b = x.chunk(2, -1)\n        return x * y + torch.cat([-b, a], -1) * y.sin()",
        "torch.randn(2, 9, 3, 64).transpose(1, 2), torch.randn(9, 64)",
        arguments="x, y",
    ),
    "a copy": source(
        "return x.clone(), torch.exp(x)", "torch.randn(9, 4, 64).transpose(0, 1)", arguments="x"
    ),
    "three orders, and one given back": source(
        "return x + y + z, y, torch.softmax(y, 1)",
        "torch.randn(5, 40, 6).permute(2, 0, 1), torch.randn(40, 6, 5).permute(1, 2, 0), torch.randn(6, 5, 40)",
        arguments="x, y, z",
    ),
    "a product of transposed matrices": source(
        "return (x @ y).relu()", "torch.randn(30, 20).T, torch.randn(30, 40)", arguments="x, y"
    ),
    "one element long": source("return torch.tanh(x) * 2", "torch.randn(1, 1, 33, 64).permute(2, 0, 1, 3)"),
}
GRADIENTS = {
    "halves": source(
        "backward = torch.ops.aten.slice_backward\n        y = x * y\n"
        "        a, b = y[..., :32], -y[..., 32:]\n"
        "        return backward(a, [9, 64], 1, 32, 2**63 - 1, 1) + backward(b, [9, 64], -1, 0, 32, 1) + x",
        "torch.randn(9, 64), torch.randn(9, 64)",
        arguments="x, y",
    ),
    "parts that overlap, and steps": source(
        "back = torch.ops.aten.slice_backward\n"
        "        a = back(x[:, :20], [9, 50], 1, 0, 20, 1) + back(x[:, :20], [9, 50], 1, -30, -10, 1)\n"
        "        return a * 2, back(x, [9, 100], 1, 0, 100, 2), torch.ops.aten.select_backward(x, [9, 50, 3], 2, -2)",
        "torch.randn(9, 50)",
    ),
    "zeros alone": source(
        "return torch.cat([torch.zeros(9, 20), x.exp(), torch.ones(9, 30)], 1)", "torch.randn(9, 50)"
    ),
}
IMAGES = {
    "convolution, batch norm, residual": source(
        "return F.relu(self.norm(self.conv(x)) + x).mean((2, 3)), self.norm(x)",
        "torch.randn(3, 12, 9, 11)",
        init="self.conv = nn.Conv2d(12, 12, 3, padding=1); self.norm = nn.BatchNorm2d(12)",
    ),
    "pooled, put together, convolved": source(
        "y = F.relu(self.conv(x))\n        z = torch.cat([y, F.max_pool2d(y, 3, 1, 1), torch.tanh(y)], 1)\n"
        "        return self.last(z).amin(1, keepdim=True), y.softmax(1), F.avg_pool2d(y, 2)",
        "torch.randn(2, 5, 8, 10)",
        init="self.conv = nn.Conv2d(5, 17, 3, padding=1); self.last = nn.ConvTranspose2d(51, 9, 2, 2)",
    ),
    "pooled in every way, of what is computed": source(
        "y = F.hardswish(self.conv(x))\n        z = F.avg_pool2d(y, 2), F.max_pool2d(y, 3, 2, 1), F.max_pool2d(y * 2, (1, 3), (2, 1), dilation=(1, 2))\n"
        "        return *z, F.avg_pool2d(y, 3, 2, 1, count_include_pad=False), F.avg_pool2d(y, (3, 2), 1, 1, divisor_override=5).relu(), "
        "F.max_pool2d(y, (9, 11)), F.max_pool2d(y, (5, 1), 1, (2, 0)), F.avg_pool2d(y, 2, ceil_mode=True)",
        "torch.randn(2, 5, 11, 13)",
        init="self.conv = nn.Conv2d(5, 20, 3)",
    ),
    "pooled with padding of other axes": source(
        "x = F.relu(self.conv(x))\n        return F.avg_pool2d(F.pad(y, (0, 0, 1, 1)).permute(0, 3, 1, 2), 3, 1) + 1, x",
        "torch.randn(2, 5, 9, 9), torch.randn(2, 9, 11, 16)",
        init="self.conv = nn.Conv2d(5, 16, 3)",
        arguments="x, y",
    ),
    "pooled volumes": source(
        "y = self.conv(x)\n        return F.max_pool3d(y, 2, 2, 1) + 1, F.avg_pool3d(y, 2).sum(1)",
        "torch.randn(2, 3, 5, 6, 7)",
        init="self.conv = nn.Conv3d(3, 16, 3, padding=1)",
    ),
    "densely connected": source(
        "for norm, conv in zip(self.norms, self.convs):\n            x = torch.cat((x, conv(F.relu(norm(x)))), dim=1)\n        return x",
        "torch.randn(2, 16, 9, 11)",
        init="self.norms = nn.ModuleList(nn.BatchNorm2d(n, track_running_stats=False) for n in (16, 32, 48)); "
        "self.convs = nn.ModuleList(nn.Conv2d(n, 16, 3, padding=1) for n in (16, 32, 48))",
    ),
    "gates of channels, group norm": source(
        "y = self.conv(x)\n        y = y * torch.sigmoid(y.mean((2, 3), keepdim=True))\n"
        "        return F.silu(self.norm(y)) + self.bias, y.argmax(1), y.transpose(1, 2) * 2",
        "torch.randn(2, 6, 7, 9)",
        init="self.conv = nn.Conv2d(6, 16, 1); self.norm = nn.GroupNorm(4, 16); "
        "self.bias = nn.Parameter(torch.randn(16, 1, 1))",
    ),
    "depthwise, one image": source(
        "return F.relu6(self.conv(x)) * x[:, :, :1, :1]",
        "torch.randn(1, 20, 8, 8)",
        init="self.conv = nn.Conv2d(20, 20, 3, padding=1, groups=20)",
    ),
    "volumes": source(
        "return F.gelu(self.conv(x) * y), self.conv(x).sum((2, 3, 4))",
        "torch.randn(2, 3, 5, 6, 7), torch.randn(2, 1, 3, 4, 5)",
        init="self.conv = nn.Conv3d(3, 8, 3)",
        arguments="x, y",
    ),
}
