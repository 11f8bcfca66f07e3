"""Agreement of two results for the same inputs, where the exact result is not known."""

import math
from dataclasses import dataclass

import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected, a_few, comparable
from kernelwright.kernelbench.evaluator.memory.blocks import row_blocks
from kernelwright.kernelbench.evaluator.reference.float64 import is_discrete

# Chosen by hand, as those of the error budget.
_APART = 0.035  # rms distance, in tolerances, of two right results that are both exact when verified
_INDICES_APART = 1e-3  # share of an output's indices that may differ between two right results
_NOT_FINITE_APART = 1e-3  # share of elements that may overflow in one of two right results alone
_AS_VERIFIED = 4.0  # factor by which timed outputs may be further apart than verified ones
_ENOUGH = 1024  # elements from which an rms tells one precision from another


@dataclass(frozen=True)
class Tolerance:
    """Distance at which two results for the same inputs may both be right, without knowing the exact result.

    Serves to examine many calls cheaply. No element is further from the other than four times the largest
    tolerance of calls with inputs like these, and all together are about as near to it as the candidate was
    when it was verified: a lower precision, used only once a candidate is timed, stays within most tolerances
    of long sums, but its results are further off than they were. One element of many may jump.
    """

    spread: float = 0.0
    relative: float = 0.0

    def widened(self, expected: Expected) -> "Tolerance":
        """Tolerance once `expected` is among the calls."""
        rows = torch.where(torch.isfinite(expected.spread), expected.spread, 0.0)
        if not rows.numel():
            return self
        relative = float(expected.relative.max())
        if expected.rounding:
            relative += expected.rounding * torch.finfo(expected.reference.dtype).eps
        return Tolerance(max(self.spread, float(rows.max())), max(self.relative, relative))

    def distance(self, actual: torch.Tensor, other: torch.Tensor) -> float:
        """Distance of two results: their rms difference in tolerances; of integers the share that differs."""
        if is_discrete(actual.dtype):
            differs = comparable(actual) != comparable(other)
            return float(differs.double().mean()) if actual.numel() else 0.0
        squares, elements = 0.0, 0
        for at in row_blocks(actual.shape):
            apart = self._apart(actual[at], other[at])[0]
            squares += self._rms(apart) ** 2 * apart.numel()
            elements += apart.numel()
        return math.sqrt(squares / max(1, elements))

    def unlike(self, actual: torch.Tensor, other: torch.Tensor) -> float:
        """Return the share of elements that are infinite or NaN in `other`, and something else here."""
        if is_discrete(actual.dtype) or not actual.numel():
            return 0.0
        unlike = 0
        for at in row_blocks(actual.shape):
            a, b = _double(actual[at]), _double(other[at])
            same = (a == b) | (a.isnan() & b.isnan())
            unlike += int((~(same | b.isfinite())).sum())
        return unlike / (actual.numel() * (2 if actual.is_complex() else 1))

    def covers(
        self,
        actual: torch.Tensor,
        other: torch.Tensor,
        verified: float = math.inf,
        unlike: float = 0.0,
    ) -> bool:
        """Return True if two results may both be right.

        `verified`: the largest distance from the reference of results that were found right.

        `unlike`: the largest share of their elements that differed where the reference is not finite. They
        may: what overflows in the task's precision is right, too, where it does not.
        """
        if is_discrete(actual.dtype):
            return self.distance(actual, other) <= _INDICES_APART + _AS_VERIFIED * verified
        if self.unlike(actual, other) > _NOT_FINITE_APART + _AS_VERIFIED * unlike:
            return False
        apart, comparable = self._apart(actual, other)
        far = (apart > 4) & comparable
        most = a_few(apart) if apart.numel() >= _ENOUGH else 0  # which side of a jump they are on is chance
        if int(far.sum()) > most or bool((apart.isnan() & comparable).any()):
            return False
        apart = apart.where(~far, 0.0)
        if apart.numel() < _ENOUGH:  # an rms of so few elements says little
            return True
        by_chance = 1 + 4 / math.sqrt(apart.numel())
        return self._rms(apart) <= _APART + _AS_VERIFIED * by_chance * verified

    def _apart(self, actual: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the elements' distances in tolerances, and which of them say anything."""
        actual, other = _double(actual), _double(other)
        apart = (actual - other).abs_() / (self.spread + self.relative * other.abs())
        return torch.where(actual == other, 0.0, apart), torch.isfinite(other)

    def _rms(self, apart: torch.Tensor) -> float:
        finite = torch.where(apart.isfinite(), apart, 0.0)
        return float(finite.square_().mean().sqrt()) if apart.numel() else 0.0


def _double(tensor: torch.Tensor) -> torch.Tensor:
    """Float64 tensor of the same values; complex numbers become two each."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()
