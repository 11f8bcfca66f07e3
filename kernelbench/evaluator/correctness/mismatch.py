"""Patterns of wrong outputs, in words: what a kernel's author needs to know to find the fault.

Numbers alone say little: that all 4194304 elements of an output differ may be a constant that was left out,
TF32 products, or nonsense. So where the wrong elements are (`wrong_places`), what they hold instead
(`wrong_values`) and how they are off (`wrong_errors`) is named where the numbers leave no doubt; otherwise
nothing is said.

    All wrong elements are at indices 97 to 99 of dimension 1 (the last 3 of 100). The values found there are
    all 0.

Costs one pass over an output that is wrong, in blocks of rows, and some thousands of its elements. What is
said is that pattern and a few values, of inputs that no other evaluation will see.
"""

from collections.abc import Callable

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected, real
from kernelwright.kernelbench.evaluator.correctness.wrong_errors import error_pattern
from kernelwright.kernelbench.evaluator.correctness.wrong_places import where
from kernelwright.kernelbench.evaluator.correctness.wrong_sample import Elements, WrongSample, index_of
from kernelwright.kernelbench.evaluator.correctness.wrong_values import not_finite, value_pattern


def _unknown() -> str:
    return ""


def pattern_of(expected: Expected, actual: torch.Tensor, products: Callable[[], str] = _unknown) -> str:
    """Return sentences on what is wrong with an output that is; "" where there is no telling.

    `products`: see `error_pattern`.
    """
    actual = real(actual)
    if not actual.numel() or not actual.dim():
        return ""
    sample = WrongSample.of(expected, actual)
    if not sample.count:
        return ""
    return " ".join(filter(None, (where(sample), _what(sample, expected, actual, products))))


def _what(sample: WrongSample, expected: Expected, actual: torch.Tensor, products: Callable[[], str]) -> str:
    """Return a sentence on what the wrong elements hold, or how they are off, or ""."""
    if sample.unwritten:
        return (
            f"{sample.unwritten} of them hold what fresh memory is filled with before each call: they were "
            "never written."
        )
    wrong = Elements(expected, actual, index_of(sample.wrong, sample.shape))
    if said := not_finite(wrong):
        return said
    if not wrong.finite.all():  # infinities of the wrong sign
        wrong = Elements(expected, actual, tuple(part[wrong.finite] for part in wrong.index))
    return value_pattern(wrong, expected, actual) or error_pattern(sample, wrong, expected, actual, products)
