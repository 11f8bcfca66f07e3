"""What changes nothing is not computed, and nothing else is left out; constants are computed once."""

from pathlib import Path

import pytest

from tests.helpers.builtin.proving import propose, prove, source

pytestmark = pytest.mark.builds

WILD = "torch.cat([torch.randn(20), torch.tensor([float('nan'), float('inf'), -float('inf'), 0.0, -0.0, 1e-40, -1e-40])])"
# What forward computes from x, and the operators that are left of it.
SAME = {
    "ones": ("y = torch.exp(x) * 1; y = 1.0 * y / 1; y = y ** 1 - 0.0; return y.tanh()", "exp, tanh"),
    "a negative zero": ("y = torch.tanh(x) + -0.0; return -0.0 + y.exp()", "tanh, exp, add"),
    "twice the same": ("y = torch.tanh(x); return torch.maximum(y, y).exp()", "tanh, exp"),
    "either way": ("y = torch.tanh(x); return torch.where(x > 0, y, y).exp()", "tanh, exp"),
    "never negative": (
        "return torch.relu(x.exp()) * torch.abs(x * x) + torch.relu(torch.relu(x))",
        "exp, mul, relu, add",
    ),
    "back and forth": ("return (-(-x.exp())).tanh(), (~~(x > 0)).float()", "exp, tanh, gt, convert"),
    "whole already": ("return torch.floor(torch.floor(x * 3)) + 1", "mul, floor, add"),
}
# What looks like it, and is not.
OTHER = {
    "a zero": "y = torch.tanh(x); return 1 / (y + 0.0), 1 / (y - -0.0), 1 / (0.0 - y), y * 0",
    "parts": "y = torch.tanh(x); return torch.maximum(y[:20], y[7:]).exp(), (-(-x)[:5]).exp()",
    "a factor": "y = torch.tanh(x); return torch.add(y, -0.0, alpha=2.0) * 2, torch.sub(y, 0, alpha=-1) * 2",
    "may be negative": "return torch.relu(x.tanh()) + torch.abs(x * x.tanh()), torch.relu(-x.abs())",
    "returned as it came": "y = x * 1; return y, torch.tanh(x) * 1",
    "another dtype": "y = (x > 0); return y * 1, (y * 1).float() / 1, torch.logical_not(torch.logical_not(x.exp()))",
    "wider": "y = torch.tanh(x).sum(); return (y * torch.ones(3)).exp(), (y * torch.ones(3, 1)) * 2",
}
CONSTANTS = {
    "numbers": "y = torch.zeros_like(x) + 2; y = y.exp() * torch.full_like(y, 3.0); return x * y",
    "kinds": "y = torch.ones(27, dtype=torch.int64) * 3 + 0.5; return x * y, (torch.ones_like(x) > 0.5) & (x > 0)",
    "not a number": "y = torch.zeros_like(x); return x * (y / y), torch.where(y == y, x, y / 0)",
    "returned": "return torch.zeros_like(x) - 1, x * 2",
    "read by the library": "y = torch.ones_like(x).expand(27, 27) * 2; return x.exp() @ y",
}


@pytest.mark.parametrize("name", SAME)
def test_what_changes_nothing_is_left_out(name: str, tmp_path: Path) -> None:
    forward, left = SAME[name]
    found = prove(source(forward, WILD), tmp_path).source
    said = [line.split("`: ")[1].split(", ") for line in found.splitlines() if line.startswith("- `")]
    assert {op for ops in said for op in ops} == set(left.split(", "))


@pytest.mark.parametrize("name", OTHER)
def test_nothing_else_is_left_out(name: str, tmp_path: Path) -> None:
    prove(source(OTHER[name], WILD), tmp_path)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_computed_once(name: str, tmp_path: Path) -> None:
    prove(source(CONSTANTS[name], WILD), tmp_path)


def test_a_constant_costs_nothing() -> None:
    found = propose(
        source("y = torch.zeros_like(x) + 2\n        return x * y.exp()", "torch.randn(50)")
    ).source
    assert "7.389056" in found and "Nothing is left to torch" in found
