"""Operators of drop-in packages keep what torch's promise."""

import torch

from kernelwright.results.dropin.runtime import operators
from kernelwright.results.dropin.runtime.envelope import Argument


def test_what_is_another_s_memory_is_copied() -> None:
    """As of a sum's two gradients, which both are the gradient that came in."""
    given = torch.randn(4, 8)
    grad, *outputs = (Argument(name, (4, 8), (8, 1), torch.float32) for name in ("grad", "left", "right"))
    operator = operators.define("kernelwright_test::sum_backward", [grad], outputs, lambda g: (g, g))
    made = operator(given)
    assert len({each.untyped_storage().data_ptr() for each in (given, *made)}) == 3
    for each in made:
        torch.testing.assert_close(each, given)
    torch.library.opcheck(operator, (given,))
