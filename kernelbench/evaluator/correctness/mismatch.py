"""Patterns of wrong outputs, in words: what a kernel's author needs to know to find the fault.

Numbers alone say little: that all 4194304 elements of an output differ may be a constant that was left out,
TF32 products, or nonsense. So where the wrong elements are (`wrong_places`) and what they hold instead
(`wrong_values`) is named where the numbers leave no doubt; otherwise nothing is said.

    Wrong are only indices 97 to 99 of dimension 1 (the last 3 of 100). The values found there are all 0.

Costs one pass over an output that is wrong, in blocks of rows, and some thousands of its elements. What is
said is that pattern and a few values, of inputs that no other evaluation will see.
"""

from collections.abc import Callable

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected, real
from kernelwright.kernelbench.evaluator.correctness.wrong_places import where
from kernelwright.kernelbench.evaluator.correctness.wrong_sample import WrongSample
from kernelwright.kernelbench.evaluator.correctness.wrong_values import what


def _unknown() -> str:
    return ""


def pattern_of(expected: Expected, actual: torch.Tensor, products: Callable[[], str] = _unknown) -> str:
    """Return sentences on what is wrong with an output that is; "" where there is no telling.

    `products`: see `what`.
    """
    actual = real(actual)
    if not actual.numel() or not actual.dim():
        return ""
    sample = WrongSample.of(expected, actual)
    if not sample.count:
        return ""
    place = where(sample)
    value = what(sample, expected, actual, products)
    return " ".join(sentence for sentence in (place, value) if sentence)
