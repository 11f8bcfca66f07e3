"""References with rows that are split over blocks on a GPU, where a block holds `HELD` elements."""

from tests.helpers.builtin.proving import source

HELD, LEAST = 1 << 10, 1 << 7
ROWS, COLUMNS = "torch.randn(3, 1200)", "torch.randn(300, 40)"
LONG_ROWS = {
    "reductions along rows": source("return x.sum(1), x.mean(1), x.amax(1), x.amin(1, keepdim=True)", ROWS),
    "softmax": source("return torch.softmax(x * 3, -1)", ROWS),
    "log softmax, far from zero": source("return F.log_softmax(x, -1)", f"{ROWS} + 500"),
    "logsumexp": source("return x.logsumexp(1)", ROWS),
    "layer norm, far from zero": source("return F.layer_norm(x, (1200,))", f"{ROWS} + 2000"),
    "variance and norms": source("return x.std(1), x.var(1), x.norm(dim=1), F.normalize(x)", ROWS),
    "distances from the mean": source(
        "c = x - x.mean(1, keepdim=True); return c / c.abs().sum(1, keepdim=True)", ROWS
    ),
    "batch norm": source(
        "return F.relu(F.batch_norm(x, None, None, w, b, training=True))",
        "torch.randn(4, 3, 15, 20) + 3, torch.randn(3), torch.randn(3)",
        arguments="x, w, b",
    ),
    "group norm": source("return F.group_norm(x, 2) * 2", "torch.randn(2, 6, 24, 18)"),
    "instance norm of what is computed": source(
        "return F.instance_norm(torch.tanh(x) * 2)", "torch.randn(1, 3, 40, 30)"
    ),
    "norm of a batch of vectors": source("return F.batch_norm(x, None, None, training=True)", COLUMNS),
    "reductions along columns": source("return x.sum(0), x.amax(0), x.std(0, correction=0)", COLUMNS),
    "softmax along columns": source("return torch.softmax(x, 1)", "torch.randn(2, 90, 40)"),
    "places along rows": source(
        "return x.argmax(1), *x.min(1), x.argmax(1, keepdim=True)",
        "torch.randint(-3, 3, (3, 1200)).float()",
    ),
    "softmax, its places, and other reductions": source(
        "return torch.softmax(x, 1), x.argmax(1), x.sum(1), x.std(1)", "torch.randn(2, 90, 40)"
    ),
    # Positive: in float, sums near zero are as exact as their terms, where torch adds in double on a CPU.
    "softmax of running sums": source(
        "return torch.softmax(x.cumsum(1).tanh(), 1)", "0.01 * torch.rand(3, 1200)"
    ),
    "parts of a value": source("y = torch.cat([x, x * 2], 1); return y.sum(1), y[:, 7:].amax(1)", ROWS),
    "places along columns": source("return x.argmin(1), *x.max(1)", "torch.randn(2, 90, 40).round()"),
    "masks and whole numbers": source(
        "return x.sum(1), (x > 8).any(1), (x < 9).all(1), x.amax(1)", "torch.randint(0, 10, (3, 1200))"
    ),
    "no equal parts": source("return torch.softmax(x, -1), x.sum(1)", "torch.randn(2, 1201)"),
    "few equal parts": source("return torch.softmax(x, -1)", "torch.randn(2, 7 * 173)"),
    "double precision": source("return torch.softmax(x, -1), x.var(1)", "torch.randn(2, 1200).double()"),
}
