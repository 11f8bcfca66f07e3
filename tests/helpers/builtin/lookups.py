"""References that look something up."""

from tests.helpers.builtin.proving import source

TOKENS = "torch.randint(0, 50, (3, 5))"
LOOKUPS = {
    "an embedding": source(
        "return self.e(i)", TOKENS, arguments="i", init="self.e = nn.Embedding(50, 33, padding_idx=0)"
    ),
    "tokens and their places, normalised": source(
        "return self.norm(self.word(i) + self.place(j)) * 2, self.word(i) + self.kind(i % 2)",
        f"{TOKENS}, torch.randint(0, 8, (3, 5))",
        arguments="i, j",
        init="self.word = nn.Embedding(50, 33); self.place = nn.Embedding(8, 33);"
        " self.kind = nn.Embedding(2, 33); self.norm = nn.LayerNorm(33)",
    ),
    "places that are counted": source(
        "n = torch.arange(5); return self.e(i) * self.p(n), self.p(n[1:].view(2, 2)), self.p(n[::2]), self.p(n + 1)",
        TOKENS,
        arguments="i",
        init="self.e = nn.Embedding(50, 33); self.p = nn.Embedding(8, 33)",
    ),
    "one table twice, and read as it is": source(
        "return self.e(i) + self.e(j) * 2 + self.e.weight[0]",
        f"{TOKENS}, {TOKENS}",
        arguments="i, j",
        init="self.e = nn.Embedding(50, 33)",
    ),
    "indices that count from the end": source(
        "return w[i].relu(), w[:, i] * 2, w[..., i].sum(-1), w[i[0]].softmax(0), w[:, i[0]].softmax(0), w[0][i]",
        "torch.randn(6, 6), torch.randint(-6, 6, (3, 5))",
        arguments="w, i",
    ),
    "an element of each row and column": source(
        "return w.gather(1, i) * 2, w.gather(0, i), w.gather(1, i).softmax(1), w.gather(0, i).softmax(0),"
        " w.gather(1, i[:, :1]).exp(), w[:, 0].gather(0, i[0]), torch.take_along_dim(w, i[:1], 0)",
        "torch.randn(6, 6), torch.randint(0, 6, (5, 6))",
        arguments="w, i",
    ),
    "32 bits, and what is reduced": source(
        "return w.index_select(1, i).relu(), w.index_select(0, i[2]), w.index_select(-1, i).sum(),"
        " w.index_select(0, i) * w.index_select(0, i).sum(), w[:, i].cumsum(1)",
        "torch.randn(6, 6), torch.randint(0, 6, (40,)).int()",
        arguments="w, i",
    ),
    "a number for each row": source(
        "c = w[i]; return x.softmax(-1) * c[:, None], (x.sum(1) * c).sum()",
        "torch.randn(70, 33), torch.randn(33), torch.randint(0, 33, (70,))",
        arguments="x, w, i",
    ),
    "what is computed before": source(
        "z = x.softmax(-1); return z[i] * 2, z.gather(1, (i[:, None] + torch.arange(4)) % 33), z",
        "torch.randn(70, 33), torch.randint(0, 33, (70,))",
        arguments="x, i",
    ),
    "rows that are reduced, as columns": source(
        "return w[i].sum(1), w[i].amax(0), w[i].var(1), (w[i] * y).sum(1)",
        "torch.randn(90, 33), torch.randint(0, 90, (70, 50)), torch.randn(50, 33)",
        arguments="w, i, y",
    ),
    "what lies in another order": source(
        "return w[i].mT * y, (w[i] * 2).transpose(0, 2).contiguous(), w.T[j] + 1, w[:, j].T.contiguous()",
        "torch.randn(90, 33), torch.randint(0, 90, (20, 50)).T.contiguous().T, torch.randn(20, 33, 50),"
        " torch.randint(0, 33, (40,))[::2]",
        arguments="w, i, y, j",
    ),
    "other types": source(
        "return w[i].exp(), b[i], n[i] + 1, h[i] * 2, w[i]",
        "torch.randn(90, 33).bfloat16(), torch.randint(0, 90, (20,)), torch.rand(90) > 0.5, torch.arange(90),"
        " torch.randn(90, 33, dtype=torch.float64)",
        arguments="w, i, b, n, h",
    ),
    "one of one": source(
        "return w[i] + 1, F.embedding(i, w[:1]) * 2, w[:, i].exp()",
        "torch.randn(3, 1), torch.zeros(1, dtype=torch.int64)",
        arguments="w, i",
    ),
    "in a loop": source(
        "h = torch.zeros(9, 33)\n        for t in range(6):\n            h = torch.tanh(h * 0.5 + w[i][:, t])\n        return h",
        "torch.randn(50, 33), torch.randint(0, 50, (9, 6))",
        arguments="w, i",
    ),
    "a pick after a lookup": source(
        "return torch.log_softmax(w[i], 1).gather(1, j), F.cross_entropy(w[i], j[:, 0])",
        "torch.randn(50, 33), torch.randint(0, 50, (9,)), torch.randint(0, 33, (9, 1))",
        arguments="w, i, j",
    ),
}
