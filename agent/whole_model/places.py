"""Places in a model where its step spends time: modules, and functions that they call."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn


@dataclass
class StepCost:
    """Time of operators in one step, in seconds: forward and backward, and what of it are products."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    products_s: float = 0.0
    kept_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def fusable_s(self) -> float:
        """Time of all operators but products: what fusing them could save at most."""
        return self.seconds - self.products_s

    def add(self, other: "StepCost", share: float = 1.0) -> None:
        self.forward_s += share * other.forward_s
        self.backward_s += share * other.backward_s
        self.products_s += share * other.products_s
        self.kept_bytes += round(share * other.kept_bytes)


@dataclass(frozen=True)
class CallExample:
    """Arguments of a call. `form`: their shapes, dtypes and constants; arguments are kept once for each.

    `differentiated`: for each tensor among these whether autograd records it, in any call of this form;
    `of_sums`: for each such call whether the first tensor is a sum that autograd has recorded.
    """

    form: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    is_kept: bool = False
    differentiated: list[bool] = field(default_factory=list)
    of_sums: list[bool] = field(default_factory=list)


@dataclass
class CallSite:
    """A module by its path, or a function called in one; its cost without the places within it."""

    path: str
    called: Any  # the module or function
    parent: "CallSite | None"
    own: StepCost = field(default_factory=StepCost)
    calls: "list[CallExample]" = field(default_factory=list)  # of one step
    operators: int = 0  # calls of torch's operators in one forward pass
    children: "list[CallSite]" = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Name of the class or function, with that of its Python module."""
        of = type(self.called) if isinstance(self.called, nn.Module) else self.called
        return f"{of.__module__}.{of.__qualname__}"

    @cached_property
    def cost(self) -> StepCost:
        """The cost with the places within it."""
        total = StepCost()
        for each in (self, *self.descendants()):
            total.add(each.own)
        return total

    @property
    def all_operators(self) -> int:
        """Calls of torch's operators with those of the places within it."""
        return self.operators + sum(each.operators for each in self.descendants())

    def descendants(self) -> "Iterator[CallSite]":
        for child in self.children:
            yield child
            yield from child.descendants()
