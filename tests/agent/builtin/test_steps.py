"""Work of many steps: products that can be done at once, and values that are read in parts."""

from pathlib import Path

import pytest

from tests.helpers.builtin.proving import propose, prove, source
from tests.helpers.builtin.steps import STEPS, STEPS_TEXTS

pytestmark = pytest.mark.builds

PARTS = {
    "halves": ("a, b = (x * 2 + 1).chunk(2, -1)\n        return a * torch.sigmoid(b)", "torch.randn(9, 66)"),
    "only some": (
        "y = torch.tanh(x)\n        return y[:, 5:40] * 2, y[3:5, 41:].sum(-1)",
        "torch.randn(9, 66)",
    ),
    "a chain": (
        "a, b = torch.exp(x * 2 + x[:, :1]).chunk(2, 0)\n        return torch.softmax(a + b, -1)",
        "torch.randn(8, 33)",
    ),
    "parts and the whole": (
        "y = torch.exp(x)\n        return y[:, :30] * y[:, 36:], y.sum(-1)",
        "torch.randn(9, 66)",
    ),
    "overlapping": ("y = torch.exp(x)\n        return y[:, :50] * y[:, 16:]", "torch.randn(9, 66)"),
    "every second": ("y = torch.exp(x)\n        return y[:, ::2] * y[:, 1::2]", "torch.randn(9, 66)"),
    "windows": ("return F.avg_pool2d(torch.exp(x), 2, 4, 1)[:, :, 1:]", "torch.randn(2, 3, 17, 18)"),
    "a row for all": ("y = torch.exp(x)\n        return y[:1] * y[1:5]", "torch.randn(9, 66)"),
}


@pytest.mark.parametrize("name", STEPS)
def test_products_of_all_steps(name: str, tmp_path: Path) -> None:
    found = prove(STEPS_TEXTS[name], tmp_path).source
    assert found.count("F.linear(") == STEPS[name][2]


@pytest.mark.parametrize("name", PARTS)
def test_values_that_are_read_in_parts(name: str, tmp_path: Path) -> None:
    prove(source(*PARTS[name]), tmp_path)


def test_the_gates_of_a_step_are_one_kernel() -> None:
    """The same one in each step but the first, in which nothing is held, and the last, which hands nothing on."""
    found = propose(STEPS_TEXTS["of a tensor's second axis"]).source
    assert (found.count('extern "C"'), found.count("lib.")) == (3, 6)
