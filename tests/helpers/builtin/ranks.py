"""References that ask for the few largest, or smallest, elements."""

from tests.helpers.builtin.proving import source

RANKS = {
    "of rows": source("v, i = x.topk(3); return v, i, v.softmax(-1)", "torch.randn(70, 33)"),
    "of columns, and of other axes": source(
        "v, i = x.topk(2, 1); w, j = x.topk(4, 0, largest=False)\n"
        "        return v, i, w, j, x.topk(1, -1)[1], x.topk(8, 2, sorted=False)[0].sum(-1)",
        "torch.randn(9, 20, 33)",
    ),
    "of what is computed": source(
        "v, i = (x * y + 1).tanh().topk(2); return v / v.sum(-1, keepdim=True), i",
        "torch.randn(40, 8), torch.randn(40, 1)",
        arguments="x, y",
    ),
    "of long columns": source("v, i = x.topk(2, 0); return v * 2, i", "torch.randn(2100, 45)"),
    "of a part, turned": source(
        "v, i = x[:, 3:].t().topk(3); return v, i, x[::2].topk(2, largest=False)[1]", "torch.randn(80, 40)"
    ),
    "the smallest of long rows": source(
        "v, i = x.topk(5, largest=False); return v, i", "torch.randn(3, 9001)"
    ),
    "the only one there is besides": source("v, i = x.topk(2); return v, i", "torch.randn(50, 2)"),
    "in 16 bits": source(
        "v, i = x.topk(2); w, j = x.half().topk(3, 0, largest=False); return v, i, w, j",
        "(torch.randperm(195).reshape(3, 65) - 97).bfloat16()",
    ),
}
EXPERTS = source(
    "v, i = self.router(x).topk(2); share = v.new_zeros(48, 8).scatter(-1, i, v.softmax(-1))\n"
    "        return share, self.e(i) * v.softmax(-1)[..., None]",
    "torch.randn(48, 16)",
    init="self.router = nn.Linear(16, 8, bias=False); self.e = nn.Embedding(8, 16)",
)
