"""The form of a call's arguments, or of its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class CallForm:
    """Form of a call's arguments, or of its result: where tensors are, and all that is no tensor."""

    spec: Any  # of pytree
    constants: tuple[Any, ...]  # None in the places of tensors
    is_tensor: tuple[bool, ...]

    @classmethod
    def of(cls, value: Any) -> "tuple[CallForm, list[Tensor]]":
        leaves, spec = pytree.tree_flatten(value)
        is_tensor = tuple(isinstance(leaf, Tensor) for leaf in leaves)
        constants = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, constants, is_tensor), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return a value of this form with these tensors."""
        rest = iter(tensors)
        leaves = [
            next(rest) if wanted else constant
            for wanted, constant in zip(self.is_tensor, self.constants, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)

    def tensors_of(self, value: Any) -> list[Tensor] | None:
        """Return the tensors of a value; None where its form, or what is no tensor in it, is another."""
        form, tensors = CallForm.of(value)
        return tensors if form == self else None
