"""Rows that the caches do not hold: sums of many elements, and two passes as one."""

import math
from pathlib import Path

import pytest

from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

pytestmark = pytest.mark.builds


def test_long_rows_are_summed_as_exactly_as_short_ones(tmp_path: Path) -> None:
    prove(source("return x.sum(1), F.layer_norm(x, (100003,))", "torch.rand(3, 100003) + 5"), tmp_path)


LONG_ROWS = {
    "softmax": "return torch.softmax(x, -1)",
    "softmax of running sums": "return torch.softmax(x.cumsum(-1).tanh(), -1)",
    "squares of all": "d = x - x.mean(-1, keepdim=True); return (d * d).mean(), (x - x.amax(-1, keepdim=True)).exp().sum()",
    "log softmax of a part": "return torch.log_softmax(x[:, 5:] * 2, -1)",
    "softmax of what is computed": "return torch.softmax(torch.tanh(x) * 3, -1) * 2",
    "cross entropy": "return F.cross_entropy(x, x[:, :1].abs().long().view(-1))",
    "layer norm, and the same statistics": "return F.layer_norm(x, x.shape[1:]) * 2, x.var(1), x.mean(1)",
    "batch norm": "return F.batch_norm(x[:, :30000].view(5, 3, 40, 250), None, None, training=True)",
    "group norm": "return F.group_norm(x[:, :30000].view(5, 6, 20, 250), 2)",
}


# Farther from zero a mean in float is less exact than torch's batch norm, which keeps it in double.
@pytest.mark.parametrize("inputs", ["torch.randn(5, 30011)", "torch.randn(5, 30011) + 2000"])
@pytest.mark.parametrize("name", LONG_ROWS)
def test_two_passes_over_a_row_as_one(name: str, inputs: str, tmp_path: Path) -> None:
    candidate = prove(source(LONG_ROWS[name], inputs), tmp_path, k0__online="on", k0__keep="off")
    only_apart = name in ("softmax of running sums", "squares of all")
    assert only_apart or candidate.schedule["k0.online"] == "on"


@pytest.mark.parametrize("block", ["1024", "16384"])
@pytest.mark.parametrize(
    "result", ["torch.softmax(x, -1)", "F.log_softmax(x, -1)", "F.layer_norm(x, (9001,))"]
)
def test_nan_and_infinity_in_two_passes_as_one(result: str, block: str, tmp_path: Path) -> None:
    text = source(f"return {result}", "torch.randn(9, 9001)")
    candidate = propose(text, k0__online="on", k0__keep="off", k0__block=block)
    assert candidate.schedule["k0.online"] == "on"
    model, model_new, (x,) = models(text, candidate, tmp_path)
    x[0, 5000], x[1, 8999], x[2, 3], x[3] = math.nan, math.inf, -math.inf, -math.inf
    x[4, :8900], x[5, 8000:], x[6, 0], x[6, 1] = -math.inf, -math.inf, math.inf, -math.inf
    x[7] = 1e18 * x[7]
    assert_right(model, model_new, [x])
