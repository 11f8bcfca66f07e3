"""Code of a backward, which computes only those gradients that are wanted: frozen weights cost nothing."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from .loaded import Loaded
from .operators import detached
from .sizes import Size, at


def _is_kept() -> bool:
    """Return True if what was saved may be needed again: for another backward pass, or outside of one."""
    outside = torch._C._current_graph_task_id() == -1
    keeps: bool = torch._C._autograd._get_current_graph_task_keep_graph()
    return outside or keeps


class BackwardCode:
    """A function of the outputs' gradients, of saved tensors, and of a list of which gradients are wanted.

    A kernel computes all of them. It does not where ATen calls compute those that are wanted with fewer
    products; saved tensors that those do not need may be None.
    """

    def __init__(self, module: str, words: Mapping[str, Any]) -> None:
        """Load the backward of the kernel in `module`; `words`: what metadata.json says of it."""
        kernel = words["way"] == "kernel"
        self.is_unit = words["way"] == "unit"  # the forward has computed it but for a factor
        self._kernel = Loaded(import_module(f"{module}.backward"), [], 0) if kernel else None
        file = "partial_backward" if kernel else "backward"
        self._partial = import_module(f"{module}.{file}").ModelNew().forward
        self._products: list[tuple[list[int], Size]] = words["products"]  # gradients that need it, FLOPs
        self._needs: list[list[int]] = words["needs"]  # which gradients need each saved tensor

    def needed(self, wanted: Sequence[bool]) -> list[bool]:
        """Return which of the tensors that can be saved are needed for these gradients."""
        whole = self._by_kernel(wanted)
        return [whole or any(wanted[place] for place in each) for each in self._needs]

    def flops(self, wanted: Sequence[bool], sizes: Mapping[str, Any]) -> int:
        """Return the FLOPs of the stock layer's products for these gradients, at these free sizes."""
        needed = (flops for each, flops in self._products if any(wanted[place] for place in each))
        return sum(int(at(flops, sizes)) for flops in needed)

    @property
    def traced(self) -> Callable[..., Any] | None:
        """The same with launches that a compiler sees; None of C++."""
        kernel = self._kernel.traced if self._kernel is not None else None
        return None if kernel is None else lambda *given: self._computed(kernel, *given)

    def __call__(self, *given: Any) -> tuple[torch.Tensor | None, ...]:
        return self._computed(self._kernel, *given)

    def directly(self, *given: Any) -> tuple[torch.Tensor | None, ...]:
        """Compute the same in a backward pass that no operator is called for, in place where that may be."""
        if not self.is_unit or _is_kept():
            return self._computed(self._kernel, *given)
        grad, *saved, wanted = given
        pairs = zip(saved, wanted, strict=True)
        return tuple(each.mul_(grad) if needs else None for each, needs in pairs)

    def _computed(self, kernel: Callable[..., Any] | None, *given: Any) -> tuple[torch.Tensor | None, ...]:
        *tensors, wanted = given
        if kernel is not None and self._by_kernel(wanted):
            made: tuple[torch.Tensor | None, ...] = kernel(*tensors)
            return made
        return detached(self._partial(*tensors, wanted))

    def _by_kernel(self, wanted: Sequence[bool]) -> bool:
        if self._kernel is None:
            return False
        return all(wanted) or all(any(wanted[place] for place in each) for each, _ in self._products)
