"""References that pick an element of each row."""

from tests.helpers.builtin.proving import source

PICKS = {
    "a pick between uses of its row": source(
        "m = x.amax(1, keepdim=True)\n        p = x.gather(1, t)\n        return (x - m).exp(), p",
        "torch.randn(64, 80), torch.randint(0, 80, (64, 1))",
        arguments="x, t",
    ),
    "a pick before passes over its row": source(
        "p = x.gather(1, t)\n        return F.relu(x - p + 1).sum(1)",
        "torch.randn(64, 2000), torch.randint(0, 2000, (64, 1))",
        arguments="x, t",
    ),
    "the place of the largest": source("return x.argmax(-1), x.argmin(0)", "torch.randn(70, 2000)"),
}
