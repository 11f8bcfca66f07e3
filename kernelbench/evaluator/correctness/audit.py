"""Audit of a task, whether it measures anything. Runs inside the oracle, on the reference alone.

Flagged are tasks whose output is (nearly) constant or all zeros, whose output does not depend on an input or
a weight, and operations that change nothing or whose result nothing depends on, where they are a considerable
part of all. A speedup on such a task says little, since all or part of its work may be left out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.operators import OperatorMode

# Chosen by hand.
_SAME = 1e-6  # difference, relative to the output's spread, below which outputs are the same
_MOST_OPERATIONS = 64  # operations that are examined
_SMALL = 1 / 20  # share of all operations' elements that is negligible, such as a norm's guard against zero
# Operators that by design return what they were given.
_COPIES = {
    "clone",
    "detach",
    "_to_copy",
    "copy_",
    "contiguous",
    "alias",
    "lift_fresh",
    "expand",
    "slice",
    "fill_",
}

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def audit(
    model: nn.Module,
    draws: Sequence[list[torch.Tensor]],
    run: Run,
    constant: Mapping[int, bool] | None = None,
) -> list[str]:
    """Return sentences on what makes the task measure nothing; none for a sound task.

    `draws`: input sets, at least two. `constant`: the inputs that are the same in every draw, which are
    varied in the first of them, and whether outputs depend on each.
    """
    constant = constant or {}
    run = _in_float(run)
    first, second = (run(draw) for draw in draws[:2])
    floats = [output for output in first if output.is_floating_point()]
    if floats and all(float(output.abs().max()) < 1e-6 for output in floats if output.numel()):
        return ["the output is all zeros"]
    if _same(first, second):
        return ["the output is the same for different inputs"]
    if floats and len(floats) == len(first) and all(_flat(output) for output in floats):
        return ["the output is nearly constant"]
    findings = [
        f"the output ignores input {position}"
        for position in range(len(draws[0]))
        if not constant.get(position, True)
        or (
            position not in constant
            and not torch.equal(draws[0][position], draws[1][position])
            and _ignores_input(draws, position, first, run)
        )
    ]
    findings += [
        f"the output ignores the weight {name}" for name in _ignored_weights(model, draws[0], first, run)
    ]
    findings += _dead_operations(draws, first, run)
    return findings


def _in_float(run: Run) -> Run:
    """Return a run whose outputs in eight-bit floats are wider ones, which torch computes with."""
    return lambda inputs: [o.float() if is_eight_bit_float(o.dtype) else o for o in run(inputs)]


def _same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(_close(a, b) for a, b in zip(left, right, strict=True))


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    if not torch.equal(torch.isnan(a), torch.isnan(b)):
        return False
    difference = torch.nan_to_num(a - b).abs().max() if a.numel() else torch.zeros(())
    spread = torch.nan_to_num(a).abs().max() if a.numel() else torch.ones(())
    return float(difference) <= _SAME * float(spread)


def _flat(output: torch.Tensor) -> bool:
    """Many elements, all alike."""
    if output.numel() < 16:
        return False
    return float(output.std()) <= 1e-4 * float(output.abs().mean())


def _ignores_input(
    draws: Sequence[list[torch.Tensor]], position: int, first: Sequence[torch.Tensor], run: Run
) -> bool:
    mixed = list(draws[0])
    mixed[position] = draws[1][position]
    return _same(first, run(mixed))


def _ignored_weights(
    model: nn.Module, inputs: list[torch.Tensor], first: Sequence[torch.Tensor], run: Run
) -> list[str]:
    ignored = []
    for name, weight in model.named_parameters():
        if is_eight_bit_float(weight.dtype):
            continue
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.add_(torch.randn_like(weight) * (kept.abs().mean() + 0.1))
            if _same(first, run(inputs)):
                ignored.append(name)
            weight.copy_(kept)
    return ignored


class _Watch(OperatorMode):
    """Notes operations that return one of their inputs; changes the result of operation `target`."""

    def __init__(self, target: int | None = None) -> None:
        super().__init__()
        self.target = target
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.idle: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        counted = isinstance(result, torch.Tensor) and result.is_floating_point() and result.numel() > 0
        counted = counted and not is_eight_bit_float(result.dtype)
        name = func._opname
        if not counted or func.is_view or name in _COPIES or not _tensors(args):
            return result
        index = len(self.names)
        self.names.append(name)
        self.sizes.append(max(tensor.numel() for tensor in (result, *_tensors(args))))
        if self.target is None:
            self.idle.append(any(_unchanged(result, given) for given in _tensors(args)))
        elif self.target == index:
            # Element by element: a norm behind the operation undoes a change of scale or offset.
            disturbed = result * (1 + 0.3 * torch.randn_like(result)) + 0.1 * torch.randn_like(result)
            # What changes its operand is read there, not in what it returns.
            return result.copy_(disturbed) if func._schema.is_mutable else disturbed
        return result


def _tensors(args: Any) -> list[torch.Tensor]:
    return [a for a in args if isinstance(a, torch.Tensor)]


def _unchanged(result: torch.Tensor, given: torch.Tensor) -> bool:
    return (
        given.dtype == result.dtype
        and given.numel() == result.numel() > 1
        and given.data_ptr() != result.data_ptr()
        and torch.equal(given.reshape(-1), result.reshape(-1))
    )


def _dead_operations(
    draws: Sequence[list[torch.Tensor]], first: Sequence[torch.Tensor], run: Run
) -> list[str]:
    watches = []
    for draw in draws:
        with _Watch() as watch:
            run(draw)
        watches.append(watch)
    names, sizes = watches[0].names, watches[0].sizes
    if any(watch.names != names for watch in watches):
        return []
    looked_at = range(0, len(names), -(-len(names) // _MOST_OPERATIONS) or 1)
    found: dict[int, str] = {}
    for index in looked_at:
        if all(watch.idle[index] for watch in watches):
            found[index] = f"{names[index]} changes nothing"
            continue
        with _Watch(index):
            changed = run(draws[0])
        if _same(first, changed):
            found[index] = f"nothing depends on {names[index]}"
    if sum(sizes[index] for index in found) < _SMALL * sum(sizes[index] for index in looked_at):
        return []
    return [
        f"{what} (operations {', '.join(str(index) for index in found if found[index] == what)})"
        for what in dict.fromkeys(found.values())
    ]
