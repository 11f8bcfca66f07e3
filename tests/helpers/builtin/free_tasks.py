"""Tasks with a free number of rows, and parts of such."""

from tests.helpers.builtin.free import free_source

WEIGHTS = "self.w = nn.Parameter(torch.randn(96)); self.b = nn.Parameter(torch.randn(96))"
RMS = "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w"
ROWS = "torch.randn(rows, 96)"
BATCH = "torch.randn(batch, length, 96)"
QKV = "q, k, v = (t.view(*x.shape[:2], 4, 24).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)); "

OF_ROWS = {
    "rms_norm": free_source(RMS, ROWS, WEIGHTS, rows=300),
    "gelu": free_source("return F.gelu(x)", ROWS, rows=300),
    "softmax": free_source("return torch.softmax(x, -1)", "torch.randn(rows, 5000)", rows=60),
    "layer_norm": free_source("return F.layer_norm(x, (96,), self.w, self.b)", ROWS, WEIGHTS, rows=300),
    "add_norm": free_source(
        "h = x + y; return F.rms_norm(h, (96,), self.w), h", f"{ROWS}, {ROWS}", WEIGHTS, "x, y", rows=300
    ),
    "swiglu": free_source(
        "return self.down(F.silu(self.gate(x)) * self.up(x))",
        ROWS,
        "self.gate = nn.Linear(96, 64); self.up = nn.Linear(96, 64); self.down = nn.Linear(64, 96)",
        rows=300,
    ),
    "cross_entropy": free_source(
        "return F.cross_entropy(x, y, reduction='none')",
        "torch.randn(rows, 300), torch.randint(0, 300, (rows,))",
        arguments="x, y",
        rows=50,
    ),
    "mean_of_all": free_source("return F.mse_loss(x, y)", f"{ROWS}, {ROWS}", arguments="x, y", rows=300),
    "sum_of_rows": free_source("return x.sum(0)", ROWS, rows=300),
    "group_norm": free_source(
        "return torch.relu(self.n(x))", "torch.randn(rows, 6, 5, 5)", "self.n = nn.GroupNorm(3, 6)", rows=20
    ),
    "convolution": free_source(
        "return torch.relu(self.c(x)) * 2",
        "torch.randn(rows, 6, 8, 8)",
        "self.c = nn.Conv2d(6, 8, 3)",
        rows=20,
    ),
    "loop": free_source(
        "h = x[:, 0]\n        for t in range(1, 30):\n            h = h * 0.9 + x[:, t]\n        return h",
        "torch.randn(rows, 30, 16)",
        rows=50,
    ),
    "bfloat16": free_source("return torch.softmax(x, -1) * x", "torch.randn(rows, 96).bfloat16()", rows=300),
}

OF_TWO = {
    "rms_norm": free_source(RMS, BATCH, WEIGHTS, batch=50, length=40),
    "embedding": free_source(
        "return F.layer_norm(self.e(i), (96,))",
        "torch.randint(0, 70, (batch, length))",
        "self.e = nn.Embedding(70, 96)",
        "i",
        batch=50,
        length=40,
    ),
    "rope": free_source(
        "h = x.view(*x.shape[:2], 4, 24).transpose(1, 2); a, b = h.chunk(2, -1); "
        "return h * cos + torch.cat((-b, a), -1) * sin",
        f"{BATCH}, torch.randn(length, 24), torch.randn(length, 24)",
        arguments="x, cos, sin",
        batch=50,
        length=40,
    ),
    "rope_in_halves": free_source(
        "a, b = h.chunk(2, -1); return h * cos + torch.cat((-b, a), -1) * sin",
        "torch.randn(batch, 4, length, 64), torch.randn(length, 64), torch.randn(length, 64)",
        arguments="h, cos, sin",
        batch=50,
        length=40,
    ),
    "attention": free_source(
        f"{QKV}y = F.scaled_dot_product_attention(q, k, v, is_causal=True); "
        "return self.o(y.transpose(1, 2).reshape(*x.shape[:2], 96))",
        BATCH,
        "self.qkv = nn.Linear(96, 288); self.o = nn.Linear(96, 96)",
        batch=5,
        length=40,
    ),
    "softmax_of_columns": free_source(
        "return torch.softmax(x, 1)", "torch.randn(batch, 64, length)", batch=5, length=40
    ),
    "softmax_of_free_rows": free_source(
        "return torch.softmax(x, -1)", "torch.randn(batch, 6, length)", batch=50, length=40
    ),
    "contiguous_where_it_is_not": free_source(  # which copies nothing of a batch of one
        "return x[:, 1:].contiguous().view(-1) * 2", BATCH, batch=50, length=40
    ),
    "transposed": free_source("return x.transpose(1, 2).contiguous() * 2", BATCH, batch=50, length=40),
    "shifted": free_source("return F.pad(x[:, :-1], (0, 0, 1, 0)) + x", BATCH, batch=50, length=40),
}
LEAST = {"contiguous_where_it_is_not": 2}  # of lengths
