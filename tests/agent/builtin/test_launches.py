"""Equal work in several places: one kernel, told where its values begin, and one launch where that can be."""

import re
from pathlib import Path

import pytest
from proving import propose, prove, source

from agent.builtin.launches import SMALL

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


def _written(forward: str, inputs: str) -> str:
    init = "self.w = nn.ParameterList(torch.randn(300) for _ in range(6))"
    return source(forward, inputs, init=init, arguments="x, y" if inputs.count("torch.") > 1 else "x")


REPEATED = {name: _written(forward, inputs) for name, (forward, inputs, _) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_equal_work_shares_a_kernel(name: str, tmp_path: Path) -> None:
    found = prove(REPEATED[name], tmp_path).source
    assert (len(re.findall('extern "C"', found)), found.count("lib.")) == CASES[name][2]


def test_threads_share_calls_that_are_worth_it() -> None:
    few, many = (
        propose(_written(f"return [torch.exp(x[i]) for i in range({n})]", f"torch.randn({n}, 2048)")).source
        for n in (4, 64)
    )
    assert "omp parallel" not in few
    assert "#pragma omp parallel for schedule(static)\n    for (int64_t call = 0; call < 64; ++call)" in many


def test_where_calls_begin_is_a_formula_or_a_table() -> None:
    orders = ((0, 1, 2, 3), (1, 3, 5, 7), (5, 0, 3, 2))
    forwards = (f"return [torch.exp(x[i]) for i in {order}]" for order in orders)
    begins = [propose(_written(forward, "torch.randn(8, 300)")).source for forward in forwards]
    assert "call * 300)" in begins[0]
    assert "300 + call * 600)" in begins[1]
    assert "X_AT[] = {1500, 0, 900, 600}" in begins[2]
