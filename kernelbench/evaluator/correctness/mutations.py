"""Mutation testing of a task's input families and error budgets: would less work be noticed.

In the reference one operator at a time reads less of one operand than it should: every sixteenth element
along a dimension, all but the last sixteenth, its mean, its best approximation of rank one, or ten bits of
its mantissas. These are the ways of not computing that pay in a kernel. Outputs are then held to the budget
as a candidate's are. Whatever stays within it on every family could be left out by a kernel that is called
correct: it has too little influence on the outputs to be seen, or the families are too weak.

After DeMillo, Lipton and Sayward, "Hints on Test Data Selection" (1978). Runs inside the oracle.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.evaluator.correctness.budget import Expected
from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

MOST = 256  # mutations that are tried on a task, spread evenly over all there are
_STRIDE = (
    16  # of the elements that are read, where only a sample is; of shorter dimensions a quarter, or half
)
TOLERANCES = (1e-2, 1e-4)  # of KernelBench's checker, in its first version and now
_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution",
    "_scaled_dot_product_flash_attention_for_cpu",
}  # fmt: skip
_COPIES = {"clone", "_to_copy", "copy_", "fill_", "zero_", "lift_fresh", "detach", "resize_"}
_MANTISSA_BITS = 10  # of TF32 and fp16; bf16 has fewer

Mutation = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class MutationTrial:
    """One operator reading less of one operand, and how that went so far.

    `error`: the largest on any family, in budgets. `changes`: whether outputs were ever others than without
    it. `noticed_by`: the first family on which they were beyond the budget. `close`: whether torch.allclose
    took them, on the first input, with these tolerances, absolute and relative.
    """

    operator: int  # which one, counted from 0 in the order they are called
    name: str
    operand: int  # which one of its floating tensors
    reads: str
    dim: int | None  # along which one, if along one
    mutation: Mutation = field(repr=False)
    error: float = 0.0
    changes: bool = False
    noticed_by: str | None = None
    close: dict[float, bool] = field(default_factory=dict)

    def outcome(self) -> dict[str, Any]:
        """All of it but the mutation, for JSON: infinite errors are None."""
        told = {name: value for name, value in vars(self).items() if name != "mutation"}
        return told | {"error": self.error if math.isfinite(self.error) else None}


class MutationTrials:
    """All that are tried on one task, at most MOST. `run` gives the reference's outputs."""

    def __init__(self, run: Callable[[], list[torch.Tensor]], precision: str) -> None:
        with _Lister(rounds=precision in ("task", "fp32")) as lister:
            run()
        self.possible = len(lister.found)
        self.tried = lister.found[:: -(-self.possible // MOST) or 1]

    def attempt(
        self,
        run: Callable[[], list[torch.Tensor]],
        expected: Sequence[Expected],
        family: str,
        error_of: Callable[[list[torch.Tensor]], float],
    ) -> None:
        """Try those that have not been noticed yet on one more input, for which outputs are `expected`.

        `error_of`: what a candidate's outputs are off by, in budgets.
        """
        for mutation in self.tried:
            if mutation.noticed_by is not None:
                continue
            with _Taking(mutation):
                outputs = list(zip(expected, run(), strict=True))
            for wanted, output in outputs:
                mutation.changes |= not torch.equal(_bits(output), _bits(wanted.reference))
            mutation.error = max(mutation.error, error_of([output for _, output in outputs]))
            if not mutation.error <= 1.0:
                mutation.noticed_by = family
            for tolerance in TOLERANCES if not mutation.close else ():
                mutation.close[tolerance] = all(
                    torch.allclose(_wide(output), _wide(wanted.reference), tolerance, tolerance)
                    for wanted, output in outputs
                )


class _Lister(OperatorMode):
    """Finds the mutations that there are."""

    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.rounds = rounds
        self.operators = 0
        self.found: list[MutationTrial] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = _operands(func, args, kwargs)
        for position, operand in enumerate(operands):
            for reads, dim, mutation in _mutations(func, operand, len(operands), self.rounds):
                found = MutationTrial(self.operators, func._opname, position, reads, dim, mutation)
                self.found.append(found)
        self.operators += bool(operands)
        return func(*args, **(kwargs or {}))


class _Taking(OperatorMode):
    """Operator mode in which one operator is mutated."""

    def __init__(self, mutation: MutationTrial) -> None:
        super().__init__()
        self.mutation = mutation
        self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = _operands(func, args, kwargs)
        mine = bool(operands) and self.operators == self.mutation.operator
        self.operators += bool(operands)
        if not mine:
            return func(*args, **kwargs)
        assert func._opname == self.mutation.name, "the reference does not always call the same operators"
        old = operands[self.mutation.operand]
        new = self.mutation.mutation(old)
        if func._schema.is_mutable and old is args[0]:
            old.copy_(new)
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map(lambda value: new if value is old else value, (args, kwargs))
        return func(*args, **kwargs)


def _operands(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the floating tensors that an operator computes with; none for a copy or a view."""
    if func.is_view or func._opname in _COPIES:
        return []
    leaves = pytree.tree_leaves((args, kwargs or {}))
    return [
        x
        for x in leaves
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype.itemsize > 1 and x.numel() > 1
    ]


def _mutations(
    func: Any, operand: torch.Tensor, operands: int, rounds: bool
) -> Iterator[tuple[str, int | None, Mutation]]:
    """Mutations of an operand: what is read instead of all of it, along which dimension, and how."""
    dims = [dim for dim, size in enumerate(operand.shape) if size > 1]
    if torch.Tag.pointwise in func.tags:
        dims = dims[-1:]  # one says as much as another
    for dim in dims:
        yield "a sample", dim, functools.partial(_sampled, dim=dim)
        yield "all but the end", dim, functools.partial(_truncated, dim=dim)
    if operands > 1:
        yield "the mean", None, lambda tensor: torch.full_like(tensor, tensor.mean())
    if func._opname in _PRODUCTS and min(operand.shape, default=0) > 1 and operand.dim() > 1:
        yield "rank one", None, _rank_one
    if rounds and operand.dtype is torch.float32:
        yield f"{_MANTISSA_BITS} bits", None, _rounded


def _sampled(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Every so many elements stand for those that follow them."""
    size = tensor.shape[dim]
    stride = _STRIDE if size >= 4 * _STRIDE else 4 if size >= 16 else 2
    return tensor.index_select(dim, torch.arange(size, device=tensor.device) // stride * stride)


def _truncated(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the last elements are those before them, so that sums keep their size."""
    size = tensor.shape[dim]
    left_out = max(1, size // _STRIDE)
    where = torch.arange(size, device=tensor.device)
    where[-left_out:] -= left_out
    return tensor.index_select(dim, where)


def _rank_one(tensor: torch.Tensor) -> torch.Tensor:
    matrix = tensor.reshape(tensor.shape[0], -1) if tensor.dim() != 3 else tensor
    left, singular, right = torch.svd_lowrank(matrix, q=1)
    return (left @ torch.diag_embed(singular) @ right.mT).reshape(tensor.shape)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    dropped = 23 - _MANTISSA_BITS
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + (1 << dropped - 1)) >> dropped << dropped).view(torch.float32)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if is_eight_bit_float(tensor.dtype) else tensor


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Elements as integers, so that NaN equals NaN."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()]) if tensor.is_floating_point() else tensor
